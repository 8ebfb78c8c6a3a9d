//! The cheapest precomputed code for a sample.

use std::ops::Range;

use super::lengths::CodeLengths;
use super::templates::{LEAD, SCALES, SPAN, TEMPLATES, Template};
use super::{Codebook, origin};
use crate::Family;

/// The templates a family chooses from, or `None` if it builds its code itself.
pub(crate) fn templates(family: Family) -> Option<Range<u32>> {
    match family {
        Family::Gaussian => Some(0..SCALES),
        Family::Laplace => Some(SCALES..2 * SCALES),
        Family::PowerLaw => Some(2 * SCALES..3 * SCALES),
        Family::Best => Some(0..3 * SCALES),
        Family::Sampled => None,
    }
}

/// The template and shift that code the histogram in the fewest bits; among equals the first
/// template, then the lowest shift.
pub(super) fn cheapest(histogram: &[u32; 256], range: Range<u32>) -> Codebook {
    let candidates = range.flat_map(|template| (0..256).map(move |shift| (template, shift)));
    let (template, shift) = candidates
        .min_by_key(|&(template, shift)| cost(histogram, template, shift))
        .unwrap_or((0, 0));
    let Template { lengths, escape } = &TEMPLATES[template as usize];

    let mut code = CodeLengths {
        symbols: [0; 256],
        escape: *escape,
    };
    for (exponent, length) in code.symbols.iter_mut().enumerate() {
        if let Some(place) = place(exponent as u32, shift) {
            *length = lengths[place];
        }
    }
    Codebook {
        lengths: code,
        origin: origin(template / SCALES, template % SCALES, shift),
    }
}

/// Bits that the sample takes.
fn cost(histogram: &[u32; 256], template: u32, shift: u32) -> u32 {
    let Template { lengths, escape } = &TEMPLATES[template as usize];
    (0..256)
        .map(|exponent| {
            let length = place(exponent, shift).map_or(0, |place| lengths[place]);
            let bits = if length == 0 { escape + 8 } else { length };
            histogram[exponent as usize] * bits as u32
        })
        .sum()
}

/// Where an exponent falls in a template whose scale lies at exponent `shift`.
fn place(exponent: u32, shift: u32) -> Option<usize> {
    let place = (exponent + LEAD).checked_sub(shift)? as usize;
    (place < SPAN).then_some(place)
}
