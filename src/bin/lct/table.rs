//! The report as a table that Markdown understands.

use std::fmt::{self, Display};

use burn_lct::Profile;
use burn_lct::inspect::{Group, Measurement, Outcome, PassedThrough, Report, TensorReport};
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;

/// Columns before the first number.
const TEXT_COLUMNS: usize = 2;

/// The tensors, or their kinds, and the total.
pub fn render(report: &Report, profiles: &[Profile], by_kind: bool) -> String {
    let (first, second) = match by_kind {
        true => ("kind", "tensors"),
        false => ("tensor", "dtype"),
    };
    let mut header = [first, second, "values", "entropy", "Huffman"]
        .map(String::from)
        .to_vec();
    for &profile in profiles {
        let profile = Name(profile);
        header.push(profile.to_string());
        header.push(format!("{profile} ratio"));
        header.push(format!("{profile} spill"));
    }
    header.push("worth it".into());

    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN).set_header(header);
    if by_kind {
        table.add_rows(report.kinds.iter().map(|kind| group_row(kind, profiles)));
    } else {
        table.add_rows(
            report
                .tensors
                .iter()
                .map(|tensor| tensor_row(tensor, profiles)),
        );
    }
    table.add_row(group_row(&report.total, profiles));
    for column in table.column_iter_mut().skip(TEXT_COLUMNS) {
        column.set_cell_alignment(CellAlignment::Right);
    }

    let mut text = table.to_string();
    if report.tensors.iter().any(|tensor| tensor.rounded) {
        text += "\n\nF32 and F16 values were rounded to BF16 first (to nearest, ties to even).";
    }
    text
}

/// A profile by the name it has in JSON.
struct Name(Profile);

impl Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.serialize(f)
    }
}

fn tensor_row(tensor: &TensorReport, profiles: &[Profile]) -> Vec<String> {
    let dtype = match tensor.rounded {
        true => format!("{} as BF16", tensor.dtype),
        false => tensor.dtype.clone(),
    };
    let last = match &tensor.outcome {
        Outcome::PassedThrough(PassedThrough::Dtype) => "passed through",
        Outcome::PassedThrough(PassedThrough::Empty) => "empty",
        Outcome::Measured(measured) => match measured.worth_it() {
            Some(true) => "yes",
            Some(false) => "no",
            None => "not measured",
        },
    };
    let mut row = vec![tensor.name.clone(), dtype];
    row.extend(numbers(tensor.measured(), profiles));
    row.push(last.into());
    row
}

fn group_row(group: &Group, profiles: &[Profile]) -> Vec<String> {
    let measured = group.tensors - group.passed_through;
    let mut row = vec![group.name.clone(), format!("{} tensors", group.tensors)];
    row.extend(numbers(group.measured.as_ref(), profiles));
    row.push(match group.measured.as_ref().map(Measurement::worth_it) {
        None => "passed through".into(),
        Some(None) => "not measured".into(),
        Some(Some(_)) => format!("{} of {measured}", group.worth_it),
    });
    row
}

/// The cells that tensors and groups have in common; empty ones where nothing was measured.
fn numbers(measured: Option<&Measurement>, profiles: &[Profile]) -> Vec<String> {
    let Some(measured) = measured else {
        return vec![String::new(); 3 + 3 * profiles.len()];
    };
    let mut cells = vec![
        HumanCount(measured.values).to_string(),
        format!("{:.3}", measured.entropy),
        format!("{:.3}", measured.huffman),
    ];
    for part in &measured.profiles {
        cells.push(format!("{:.3}", part.bits_per_exponent));
        cells.push(format!("{:.4}x", part.ratio));
        cells.push(HumanBytes(part.spill_bytes).to_string());
    }
    cells
}
