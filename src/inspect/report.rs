//! What was found, tensor by tensor, kind by kind and in total.

use std::collections::BTreeMap;

use lct_kernels::{Family, Profile};
use serde::Serialize;

use super::Measurement;

/// Everything that an inspection found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Version of this crate.
    pub version: &'static str,
    /// Where the codes came from.
    pub family: Family,
    /// The profile by which tensors are judged to be worth it.
    pub default_profile: Profile,
    /// Every tensor, in the order of the files.
    pub tensors: Vec<TensorReport>,
    /// The tensors of each [kind](super::kind), by name.
    pub kinds: Vec<Group>,
    /// All tensors.
    pub total: Group,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorReport {
    /// The file it is in.
    pub file: String,
    /// Its name there.
    pub name: String,
    /// Its [kind](super::kind).
    pub kind: String,
    /// Its element type in the file.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its bytes in the file.
    pub bytes: u64,
    /// Whether its values were rounded to BF16 (to nearest, ties to even) before they were coded.
    pub rounded: bool,
    /// What was found.
    pub outcome: Outcome,
}

/// Whether a tensor was coded.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was, and came back.
    Measured(Measurement),
    /// It would be handed through as it is.
    PassedThrough(PassedThrough),
}

/// Why a tensor is handed through as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PassedThrough {
    /// Its element type is not one that is trained in BF16.
    Dtype,
    /// It has no values.
    Empty,
}

/// Several tensors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// The kind, or `total`.
    pub name: String,
    /// Tensors.
    pub tensors: usize,
    /// Tensors of them that were handed through.
    pub passed_through: usize,
    /// Tensors of them that shrink by at least 5 % under the default profile.
    pub worth_it: usize,
    /// The measured tensors together, those that are not worth it included; `None` if none was measured.
    pub measured: Option<Measurement>,
}

impl Report {
    /// Groups tensors that were measured under the same profiles.
    pub fn new(tensors: Vec<TensorReport>) -> Self {
        let mut kinds: BTreeMap<&str, Vec<&TensorReport>> = BTreeMap::new();
        for tensor in &tensors {
            kinds.entry(&tensor.kind).or_default().push(tensor);
        }
        let kinds = kinds.into_iter();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            family: Family::default(),
            default_profile: Profile::default(),
            kinds: kinds
                .map(|(name, tensors)| Group::new(name, tensors))
                .collect(),
            total: Group::new("total", &tensors),
            tensors,
        }
    }
}

impl TensorReport {
    /// What coding it came to, if it was coded.
    pub fn measured(&self) -> Option<&Measurement> {
        match &self.outcome {
            Outcome::Measured(measured) => Some(measured),
            Outcome::PassedThrough(_) => None,
        }
    }
}

impl Group {
    fn new<'a>(name: &str, tensors: impl IntoIterator<Item = &'a TensorReport>) -> Self {
        let tensors: Vec<&TensorReport> = tensors.into_iter().collect();
        let measured: Vec<&Measurement> = tensors
            .iter()
            .filter_map(|tensor| tensor.measured())
            .collect();
        Self {
            name: name.into(),
            tensors: tensors.len(),
            passed_through: tensors.len() - measured.len(),
            worth_it: measured
                .iter()
                .filter(|measured| measured.worth_it() == Some(true))
                .count(),
            measured: Measurement::together(measured),
        }
    }
}
