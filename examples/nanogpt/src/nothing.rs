//! What burn-train wants and a training on several devices does without.

use burn::{
    data::dataloader::{DataLoader, DataLoaderIterator, Progress as Position},
    tensor::backend::Backend,
    train::{
        metric::MetricDefinition,
        renderer::{
            EvaluationName, EvaluationProgress, MetricState, MetricsRenderer,
            MetricsRendererEvaluation, MetricsRendererTraining, ProgressType, TrainingProgress,
        },
    },
};
use std::sync::Arc;

/// What burn-train shows, and what it validates on: nothing.
pub(crate) struct Nothing;

impl Iterator for Nothing {
    type Item = ();

    fn next(&mut self) -> Option<()> {
        None
    }
}

impl DataLoaderIterator<()> for Nothing {
    fn progress(&self) -> Position {
        Position::new(0, 0)
    }
}

impl<B: Backend> DataLoader<B, ()> for Nothing {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<()> + 'a> {
        Box::new(Self)
    }

    fn num_items(&self) -> usize {
        0
    }

    fn to_device(&self, _device: &B::Device) -> Arc<dyn DataLoader<B, ()>> {
        Arc::new(Self)
    }

    fn slice(&self, _start: usize, _end: usize) -> Arc<dyn DataLoader<B, ()>> {
        Arc::new(Self)
    }
}

impl MetricsRendererTraining for Nothing {
    fn update_train(&mut self, _state: MetricState) {}

    fn update_valid(&mut self, _state: MetricState) {}

    fn render_train(&mut self, _item: TrainingProgress, _indicators: Vec<ProgressType>) {}

    fn render_valid(&mut self, _item: TrainingProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRendererEvaluation for Nothing {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}

    fn render_test(&mut self, _item: EvaluationProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRenderer for Nothing {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, _definition: MetricDefinition) {}
}
