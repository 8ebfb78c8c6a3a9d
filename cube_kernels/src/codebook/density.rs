//! Regenerates the precomputed codes from the densities they stand for.

use super::huffman;
use super::templates::{LEAD, SCALES, SPAN, TEMPLATES, Template};

/// Probability that `|x| < t`, for each family at scale 1.
type Distribution = fn(f64) -> f64;

/// Standard normal, by Simpson's rule: the standard library has no error function.
fn gaussian(t: f64) -> f64 {
    let t = t.min(12.0);
    let density = |x: f64| (-0.5 * x * x).exp() * (2.0 / std::f64::consts::PI).sqrt();
    let steps = 2000;
    let h = t / steps as f64;
    let sum: f64 = (0..=steps)
        .map(|i| {
            let weight = match i {
                0 => 1.0,
                _ if i == steps => 1.0,
                _ if i % 2 == 1 => 4.0,
                _ => 2.0,
            };
            weight * density(i as f64 * h)
        })
        .sum();
    sum * h / 3.0
}

fn laplace(t: f64) -> f64 {
    -(-t).exp_m1()
}

/// Lomax with tail exponent 2: flat near zero, falling as `1 / t^3` beyond its scale.
fn power_law(t: f64) -> f64 {
    1.0 - (1.0 + t).powi(-2)
}

fn generate() -> Vec<Template> {
    let families: [Distribution; 3] = [gaussian, laplace, power_law];
    let scales = families
        .iter()
        .flat_map(|below| (0..SCALES).map(move |scale| (below, scale)));
    scales
        .map(|(below, quarter)| {
            let scale = (quarter as f64 / SCALES as f64).exp2();
            let mut weights = [0; 256];
            for (place, weight) in weights[..SPAN].iter_mut().enumerate() {
                let low = (place as f64 - LEAD as f64).exp2() / scale;
                let probability = below(2.0 * low) - below(low);
                *weight = (probability * f64::from(1 << 20)).round() as u32;
            }
            let code = huffman::lengths(&weights);
            let mut lengths = [0; SPAN];
            lengths.copy_from_slice(&code.symbols[..SPAN]);
            Template {
                lengths,
                escape: code.escape,
            }
        })
        .collect()
}

#[test]
fn templates_follow_from_the_densities() {
    let generated = generate();
    for template in &generated {
        println!(
            "    Template {{ escape: {}, lengths: {:?} }},",
            template.escape, template.lengths
        );
    }
    assert_eq!(generated, TEMPLATES);
}
