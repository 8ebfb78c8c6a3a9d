//! The losses of a step.

use crate::Error;
use burn::tensor::{Tensor, TensorData, backend::AutodiffBackend};

/// The losses of a step's batches, not read yet.
pub struct Losses<B: AutodiffBackend> {
    /// The loss of each batch, from which its backward pass started.
    loss: Vec<Tensor<B::InnerBackend, 1>>,
    /// The negative log likelihood of each target of each batch.
    by_token: Vec<Tensor<B::InnerBackend, 1>>,
}

impl<B: AutodiffBackend> Losses<B> {
    /// No batch is done.
    pub fn new() -> Self {
        Self {
            loss: Vec::new(),
            by_token: Vec::new(),
        }
    }

    /// The loss of one more batch: the mean of its targets' negative log likelihoods.
    pub fn of(&mut self, surprise: Tensor<B, 1>) -> Tensor<B, 1> {
        self.by_token.push(surprise.clone().inner());
        let loss = surprise.mean();
        self.loss.push(loss.clone().inner());
        loss
    }

    /// Waits for them.
    ///
    /// # Errors
    /// A device that fails.
    pub fn read(self) -> Result<Loss, Error> {
        let read = |batches: Vec<Tensor<B::InnerBackend, 1>>| {
            let data = batches.into_iter().map(Tensor::try_into_data);
            data.collect::<Result<Vec<_>, _>>()
                .map_err(Error::device("reading the loss"))
        };
        Ok(Loss {
            bits: bits(&read(self.loss)?),
            mean: mean(&read(self.by_token)?),
        })
    }
}

/// The loss of a step, as [reports](crate::report::Step) have it.
pub struct Loss {
    /// The mean over all targets.
    pub mean: f64,
    /// The bits of the losses from which the backward passes started.
    pub bits: String,
}

impl<B: AutodiffBackend> Default for Losses<B> {
    fn default() -> Self {
        Self::new()
    }
}

/// The mean of the numbers of several batches, summed in double precision in their order.
pub(crate) fn mean(batches: &[TensorData]) -> f64 {
    let sum: f64 = batches.iter().flat_map(TensorData::iter::<f64>).sum();
    let count: usize = batches.iter().map(TensorData::num_elements).sum();
    sum / count as f64
}

/// The bits of each batch's number in their order, most significant byte first.
fn bits(batches: &[TensorData]) -> String {
    let hex: String = batches
        .iter()
        .flat_map(|batch| batch.as_bytes().iter().rev())
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("0x{hex}")
}
