//! The precomputed codes. Fixed forever as part of the format; a test regenerates them.

/// Fractional scales in each family: the scale's logarithm in quarters.
pub(crate) const SCALES: u32 = 4;
/// Exponents that a template spans.
pub(crate) const SPAN: usize = 32;
/// Exponents of the span that lie below the scale's own.
pub(crate) const LEAD: u32 = 20;

/// Code lengths by exponent, relative to the scale's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    /// Length by place; zero is behind the escape.
    pub lengths: [u8; SPAN],
    /// Length of the escape.
    pub escape: u8,
}

/// Gaussian, Laplace, power law; four scales each.
pub(crate) const TEMPLATES: [Template; 12] = [
    Template {
        escape: 8,
        lengths: [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 7, 7, 5, 5, 3, 2, 2, 2, 5, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0,
        ],
    },
    Template {
        escape: 8,
        lengths: [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 7, 5, 4, 3, 3, 2, 2, 3, 8, 0, 0, 0, 0, 0, 0,
            0, 0, 0,
        ],
    },
    Template {
        escape: 8,
        lengths: [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 5, 4, 3, 2, 2, 2, 8, 0, 0, 0, 0, 0, 0,
            0, 0, 0,
        ],
    },
    Template {
        escape: 8,
        lengths: [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 7, 7, 6, 4, 3, 2, 2, 2, 6, 0, 0, 0, 0, 0, 0,
            0, 0, 0,
        ],
    },
    Template {
        escape: 8,
        lengths: [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 7, 7, 6, 4, 3, 3, 2, 2, 3, 6, 0, 0, 0, 0, 0, 0,
            0, 0, 0,
        ],
    },
    Template {
        escape: 8,
        lengths: [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 7, 5, 5, 3, 3, 2, 2, 3, 5, 8, 0, 0, 0, 0, 0,
            0, 0, 0,
        ],
    },
    Template {
        escape: 8,
        lengths: [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 7, 5, 4, 4, 3, 2, 2, 3, 4, 8, 0, 0, 0, 0, 0,
            0, 0, 0,
        ],
    },
    Template {
        escape: 8,
        lengths: [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 5, 4, 3, 3, 2, 2, 3, 8, 0, 0, 0, 0, 0,
            0, 0, 0,
        ],
    },
    Template {
        escape: 8,
        lengths: [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 6, 5, 5, 4, 3, 2, 2, 3, 4, 6, 8, 8, 8, 0, 0, 0,
            0, 0, 0,
        ],
    },
    Template {
        escape: 8,
        lengths: [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 6, 6, 5, 4, 3, 2, 2, 3, 4, 5, 8, 8, 8, 0, 0, 0,
            0, 0, 0,
        ],
    },
    Template {
        escape: 8,
        lengths: [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 6, 4, 4, 3, 3, 2, 3, 3, 4, 6, 8, 8, 0, 0, 0,
            0, 0, 0,
        ],
    },
    Template {
        escape: 8,
        lengths: [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 5, 5, 4, 3, 3, 2, 3, 3, 4, 5, 8, 8, 0, 0, 0,
            0, 0, 0,
        ],
    },
];
