//! Whether two runs agree bit for bit.

use crate::{Error, report::Report};
use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    path::Path,
};

/// What two reports have in common and where they part.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Training steps that both reports have.
    pub common_steps: usize,
    /// The first step whose loss differs, with both bit patterns.
    pub first_difference: Option<(usize, String, String)>,
    /// Whether validation losses of the same steps are equal.
    pub validation_equal: bool,
    /// Whether the weights at the end are equal.
    pub weights_equal: bool,
    /// Whether the optimizer's state at the end is equal.
    pub state_equal: bool,
    /// The second run's figure divided by the first's: median step time, peak bytes in use, peak bytes reserved.
    pub ratios: [(&'static str, Option<f64>); 3],
}

impl Comparison {
    /// Compares two reports.
    ///
    /// # Errors
    /// A file that is no report, or two runs without a step in common.
    pub fn of_files(a: &Path, b: &Path) -> Result<Self, Error> {
        let comparison = Self::of(&Report::load(a)?, &Report::load(b)?);
        if comparison.common_steps == 0 {
            return Err(Error::NothingToCompare {
                a: a.into(),
                b: b.into(),
            });
        }
        Ok(comparison)
    }

    /// Compares two reports: steps by their number, so a resumed run can be held against a whole one.
    pub fn of(a: &Report, b: &Report) -> Self {
        let losses: BTreeMap<usize, (&str, u64)> = a
            .steps
            .iter()
            .map(|s| (s.step, (s.loss_bits.as_str(), s.loss.to_bits())))
            .collect();
        let validations: BTreeMap<usize, u64> = a
            .validation
            .iter()
            .map(|v| (v.step, v.loss.to_bits()))
            .collect();

        let mut common_steps = 0;
        let mut first_difference = None;
        for step in &b.steps {
            let Some(&(bits, loss)) = losses.get(&step.step) else {
                continue;
            };
            common_steps += 1;
            if first_difference.is_none() && (bits != step.loss_bits || loss != step.loss.to_bits())
            {
                first_difference = Some((step.step, bits.to_string(), step.loss_bits.clone()));
            }
        }
        let ratio = |a: Option<u64>, b: Option<u64>| Some(b? as f64 / a.filter(|&a| a > 0)? as f64);
        let time = a
            .median_step_ms()
            .zip(b.median_step_ms())
            .map(|(a, b)| b / a);
        Self {
            common_steps,
            first_difference,
            validation_equal: b.validation.iter().all(|v| {
                validations
                    .get(&v.step)
                    .is_none_or(|&loss| loss == v.loss.to_bits())
            }),
            weights_equal: a.weights_digest == b.weights_digest,
            state_equal: a.state_digest == b.state_digest,
            ratios: [
                ("median step time", time),
                (
                    "peak bytes in use",
                    ratio(a.peak_bytes_in_use, b.peak_bytes_in_use),
                ),
                (
                    "peak bytes reserved",
                    ratio(a.peak_bytes_reserved, b.peak_bytes_reserved),
                ),
            ],
        }
    }

    /// Whether everything is equal.
    pub fn equal(&self) -> bool {
        self.first_difference.is_none()
            && self.validation_equal
            && self.weights_equal
            && self.state_equal
    }
}

impl Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |equal: bool| if equal { "equal" } else { "DIFFERENT" };
        match &self.first_difference {
            None => writeln!(
                f,
                "training loss     equal in all {} common steps",
                self.common_steps
            )?,
            Some((step, a, b)) => writeln!(
                f,
                "training loss     DIFFERENT from step {step} on: {a} and {b}"
            )?,
        }
        writeln!(f, "validation loss   {}", word(self.validation_equal))?;
        writeln!(f, "weights           {}", word(self.weights_equal))?;
        writeln!(f, "optimizer state   {}", word(self.state_equal))?;
        for (what, ratio) in self.ratios {
            if let Some(ratio) = ratio {
                writeln!(f, "{what:<19} second / first = {ratio:.4}")?;
            }
        }
        write!(
            f,
            "{}",
            if self.equal() {
                "bit-equal"
            } else {
                "NOT bit-equal"
            }
        )
    }
}
