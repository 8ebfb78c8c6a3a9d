//! Pieces of tensors by name, and the file they are written to.

use crate::Error;
use burn::tensor::{Tensor, backend::Backend, bf16};
use safetensors::{
    Dtype,
    tensor::{TensorView, serialize_to_file},
};
use std::{collections::HashMap, path::Path};

/// Samples in the order in which they were taken.
pub(super) struct Samples<B: Backend> {
    /// The most values of one tensor.
    limit: usize,
    pieces: Vec<(String, Tensor<B, 1>)>,
}

impl<B: Backend> Samples<B> {
    /// No samples yet, of at most `limit` values each.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            pieces: Vec::new(),
        }
    }

    /// Takes a contiguous piece from the middle of a tensor in row-major order, so that its structure stays.
    pub(super) fn add<const D: usize>(&mut self, kind: &str, place: &str, tensor: Tensor<B, D>) {
        let all = tensor.shape().num_elements();
        let count = all.min(self.limit);
        let flat: Tensor<B, 1> = tensor.reshape([all]);
        let piece = flat.narrow(0, (all - count) / 2, count);
        self.pieces.push((format!("{kind}/{place}"), piece));
    }

    /// Writes the samples in BF16, with a text that says which run they are of.
    ///
    /// # Errors
    /// A device that fails, or a file that cannot be written.
    pub(super) fn save(self, path: &Path, run: &str) -> Result<(), Error> {
        let mut samples = Vec::new();
        for (name, piece) in self.pieces {
            let data = piece
                .try_into_data()
                .map_err(Error::device("reading samples"))?;
            samples.push((name, data.convert::<bf16>()));
        }
        let failed = |error: safetensors::SafeTensorError| Error::Save {
            path: path.to_path_buf(),
            message: error.to_string(),
        };
        let mut views = Vec::new();
        for (name, data) in &samples {
            let shape = vec![data.num_elements()];
            let view = TensorView::new(Dtype::BF16, shape, data.as_bytes()).map_err(failed)?;
            views.push((name, view));
        }
        let about = HashMap::from([("run".to_owned(), run.to_owned())]);
        serialize_to_file(views, Some(about), path).map_err(failed)
    }
}
