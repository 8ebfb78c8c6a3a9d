//! A picture of memory within a training step: bytes over time, by what they are for.

use crate::{Error, memory::Moment, optim::OptimKind, report::Report};
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use serde_json::Value;
use std::{fs, io, iter, path::Path};

const GIB: f64 = 1_073_741_824.0;
/// Bytes of a BF16 value.
const VALUE: u64 = 2;

/// Pixels of a panel and of its parts.
const WIDTH: u32 = 860;
const HEIGHT: u32 = 580;
const TITLE: u32 = 40;
const LEGEND: u32 = 100;
const LEGEND_ROW: i32 = 22;
const LEGEND_ROWS: usize = 4;

/// Headroom above the data for the names of the marks, as a share of the highest value.
const HEADROOM: f64 = 0.2;

/// What is drawn of compressed tensors, from the bottom up. Colors that the color-blind tell apart, after Okabe and Ito.
const LCT: [(&str, RGBColor); 5] = [
    ("packed", RGBColor(0, 114, 178)),
    ("reserve for unread spill", RGBColor(86, 180, 233)),
    ("hot window (dense)", RGBColor(230, 159, 0)),
    ("kept dense", RGBColor(0, 158, 115)),
    (
        "other: int, bool, small, temporaries, rounding",
        RGBColor(187, 187, 187),
    ),
];
/// What is drawn of plain tensors, from the bottom up.
const PLAIN: [(&str, RGBColor); 2] = [
    ("weights and optimizer state", RGBColor(204, 121, 167)),
    (
        "activations, gradients and temporaries",
        RGBColor(240, 228, 66),
    ),
];
const RESERVED: (&str, RGBColor) = ("reserved by the allocator", RGBColor(0, 0, 0));
const PROCESS: (&str, RGBColor) = ("held on the card, says its driver", RGBColor(213, 94, 0));

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<io::Error>>;

/// The timeline of one run, ready to be drawn.
pub struct Panel {
    title: String,
    /// From the bottom up, each with the layers below it added.
    layers: Vec<Series>,
    lines: Vec<Series>,
    /// Milliseconds at which a pass ends, and the pass.
    marks: [(f64, &'static str); 3],
}

/// Points of (ms, GiB) over a step.
struct Series {
    name: &'static str,
    color: RGBColor,
    points: Vec<(f64, f64)>,
}

impl Panel {
    /// The panel of a report; `None` if it has no timeline.
    pub fn new(report: &Report) -> Option<Self> {
        let timeline = report.timeline.as_ref()?;
        let states =
            serde_json::from_value(report.args["optim"].clone()).map_or(0, OptimKind::states);
        let weights = report.parameters as u64 * VALUE;
        let fixed = |ms: f64| {
            // The state comes into being in the first step's optimizer.
            let is_new = timeline.step == 1 && ms < timeline.backward_end_ms;
            weights * (1 + if is_new { 0 } else { states })
        };

        let moments = &timeline.moments;
        let compressed = moments.iter().any(|moment| moment.forms.is_some());
        let allocated = moments.iter().any(|moment| moment.usage.is_some());
        let kinds: Vec<(f64, Vec<u64>)> = moments
            .iter()
            // A reading that failed once leaves no notch.
            .filter(|moment| moment.usage.is_some() == allocated)
            .map(|moment| (moment.ms, kinds(moment, fixed(moment.ms))))
            .collect();
        let names: &[_] = match (compressed, allocated) {
            (true, true) => &LCT,
            (true, false) => &LCT[..LCT.len() - 1],
            (false, _) => &PLAIN,
        };
        let layers = (1..).zip(names).map(|(height, &name)| {
            let top = |kinds: &[u64]| kinds.iter().take(height).sum::<u64>();
            series(name, kinds.iter().map(|(ms, kinds)| (*ms, top(kinds))))
        });

        let usage = || {
            moments
                .iter()
                .filter_map(|moment| Some((moment.ms, moment.usage?)))
        };
        let lines = [
            series(RESERVED, usage().map(|(ms, usage)| (ms, usage.reserved))),
            series(PROCESS, usage().map(|(ms, usage)| (ms, usage.process))),
        ];
        let setting = |name: &str| match &report.args[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        Some(Self {
            title: format!(
                "{}, {}, batch {}: step {}",
                setting("preset"),
                setting("backend"),
                setting("batch"),
                timeline.step
            ),
            layers: layers.collect(),
            // A driver that says nothing counts as 0.
            lines: lines.into_iter().filter(|line| line.top() > 0.0).collect(),
            marks: [
                (timeline.forward_end_ms, "forward ends"),
                (timeline.backward_end_ms, "backward ends"),
                (timeline.step_end_ms, "optimizer ends"),
            ],
        })
    }

    /// The panel of a report in a file.
    ///
    /// # Errors
    /// A file that is no report, or one without a timeline.
    pub fn of_file(path: &Path) -> Result<Self, Error> {
        Self::new(&Report::load(path)?).ok_or_else(|| Error::NoTimeline { path: path.into() })
    }

    fn series(&self) -> impl Iterator<Item = &Series> {
        self.layers.iter().chain(&self.lines)
    }

    /// The last millisecond that is drawn.
    fn end(&self) -> f64 {
        let last = self.series().filter_map(|series| series.points.last());
        let marks = self.marks.iter().map(|mark| mark.0);
        last.map(|point| point.0).chain(marks).fold(0.0, f64::max)
    }

    /// The largest value that is drawn, in GiB.
    fn top(&self) -> f64 {
        self.series().map(Series::top).fold(0.0, f64::max)
    }

    /// Draws title, chart and legend with axes up to `end` ms and `top` GiB.
    fn draw(&self, area: &Area, end: f64, top: f64) -> Drawn {
        let (title, rest) = area.split_vertically(TITLE);
        let (plot, legend) = rest.split_vertically(HEIGHT - TITLE - LEGEND);
        let centered = text(24).pos(Pos::new(HPos::Center, VPos::Center));
        title.draw_text(&self.title, &centered, (WIDTH as i32 / 2, TITLE as i32 / 2))?;
        self.draw_chart(&plot, end, top)?;
        self.draw_legend(&legend)
    }

    fn draw_chart(&self, area: &Area, end: f64, top: f64) -> Drawn {
        let mut chart = ChartBuilder::on(area)
            .margin_left(8)
            .margin_right(24)
            .x_label_area_size(48)
            .y_label_area_size(80)
            .build_cartesian_2d(0.0..end, 0.0..top * (1.0 + HEADROOM))?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .label_style(text(17))
            .axis_desc_style(text(18))
            .x_desc("ms from the step's start")
            .y_desc("GiB")
            .x_label_formatter(&|ms| rounded(*ms, end))
            .y_label_formatter(&|gib| rounded(*gib, top))
            .draw()?;
        // Each layer reaches down to zero, so the higher ones come first.
        for Series { color, points, .. } in self.layers.iter().rev() {
            let points = points.iter().copied();
            chart.draw_series(AreaSeries::new(points, 0.0, color.filled()))?;
        }
        for Series { color, points, .. } in &self.lines {
            let points = points.iter().copied();
            chart.draw_series(LineSeries::new(points, color.stroke_width(2)))?;
        }
        // Marks may be close: each name has a height of its own, above the lines of the marks before it.
        for ((ms, name), row) in self.marks.into_iter().zip([0.2, 0.54, 0.88]) {
            let at = (ms, top * (1.0 + HEADROOM * row));
            let line = [(ms, 0.0), at];
            chart.draw_series(LineSeries::new(line, RGBColor(60, 60, 60)))?;
            let (side, name) = if ms < end / 2.0 {
                (HPos::Left, format!("\u{a0}{name}"))
            } else {
                (HPos::Right, format!("{name}\u{a0}"))
            };
            let style = text(17).pos(Pos::new(side, VPos::Center));
            chart.draw_series(iter::once(Text::new(name, at, style)))?;
        }
        Ok(())
    }

    fn draw_legend(&self, area: &Area) -> Drawn {
        for (index, series) in self.series().enumerate() {
            let (column, row) = (index / LEGEND_ROWS, index % LEGEND_ROWS);
            let x = 88 + column as i32 * (WIDTH as i32 - 88) / 2;
            let y = 4 + row as i32 * LEGEND_ROW;
            // A line's swatch is thin.
            let (from, to) = if index < self.layers.len() {
                (y, y + 14)
            } else {
                (y + 6, y + 8)
            };
            let swatch = Rectangle::new([(x, from), (x + 22, to)], series.color.filled());
            area.draw(&swatch)?;
            let style = text(18).pos(Pos::new(HPos::Left, VPos::Center));
            area.draw_text(series.name, &style, (x + 30, y + 7))?;
        }
        Ok(())
    }
}

impl Series {
    fn top(&self) -> f64 {
        self.points.iter().map(|point| point.1).fold(0.0, f64::max)
    }
}

/// Draws panels side by side, with the same axes, as SVG.
///
/// # Errors
/// A file that cannot be written.
pub fn draw(panels: &[Panel], file: &Path) -> Result<(), Error> {
    let mut svg = String::new();
    draw_into(panels, &mut svg).map_err(|error| Error::Draw {
        path: file.into(),
        message: error.to_string(),
    })?;
    fs::write(file, svg).map_err(Error::io("write", file))
}

fn draw_into(panels: &[Panel], svg: &mut String) -> Drawn {
    let count = panels.len();
    let root = SVGBackend::with_string(svg, (WIDTH * count as u32, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    // An axis without length cannot be drawn.
    let (end, top) = panels.iter().fold((1e-6, 1e-6), |(end, top), panel| {
        (panel.end().max(end), panel.top().max(top))
    });
    for (panel, area) in panels.iter().zip(root.split_evenly((1, count))) {
        panel.draw(&area, end, top)?;
    }
    root.present()
}

/// The bytes of each kind, from the bottom up; `fixed` are those of plain weights and optimizer state.
fn kinds(moment: &Moment, fixed: u64) -> Vec<u64> {
    let in_use = moment.usage.map(|usage| usage.in_use);
    let Some(forms) = moment.forms else {
        let in_use = in_use.unwrap_or_default();
        let fixed = fixed.min(in_use);
        return vec![fixed, in_use - fixed];
    };
    let managed = [forms.packed, forms.reserve, forms.window, forms.kept_dense];
    // The two are read one after the other, so the managed bytes may be ahead.
    let other = in_use.map(|in_use| in_use.saturating_sub(managed.iter().sum()));
    managed.into_iter().chain(other).collect()
}

fn series(
    (name, color): (&'static str, RGBColor),
    points: impl Iterator<Item = (f64, u64)>,
) -> Series {
    let points = points.map(|(ms, bytes)| (ms, bytes as f64 / GIB)).collect();
    Series {
        name,
        color,
        points,
    }
}

fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_text_style(&(WIDTH, HEIGHT))
}

/// A number on an axis that ends at `end`, with the digits that tell the axis' ticks apart.
fn rounded(value: f64, end: f64) -> String {
    let digits = (1.0 - end.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.digits$}")
}
