//! Weights in Hugging Face's files.

use crate::model::Qwen3;
use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{FloatDType, Tensor, backend::Backend},
};
use burn_store::{ModuleSnapshot, PyTorchToBurnAdapter, SafetensorsStore};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use trainer::Error;

/// The safetensors files in a folder, in the order of their names; none if the folder holds none.
///
/// # Errors
/// A folder that cannot be read.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io("read", folder))? {
        let path = entry.map_err(Error::io("read", folder))?.path();
        if path.extension().is_some_and(|it| it == "safetensors") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Reads the weights of a model from its files, one after the other, and gives them the type `dtype`.
///
/// # Errors
/// A file that cannot be read, a tensor of another shape, or one that is in none of the files.
pub fn load<B: Backend>(
    mut model: Qwen3<B>,
    files: &[PathBuf],
    dtype: FloatDType,
) -> Result<Qwen3<B>, Error> {
    let mut missing: Option<BTreeSet<String>> = None;
    for path in files {
        let refuse = |message: String| Error::Model {
            path: path.clone(),
            message,
        };
        let mut store = SafetensorsStore::from_file(path)
            .with_key_remapping(r"^model\.", "")
            .with_key_remapping(r"norm\.weight$", "norm.gamma")
            .with_from_adapter(PyTorchToBurnAdapter)
            .allow_partial(true);
        let result = model
            .load_from(&mut store)
            .map_err(|error| refuse(error.to_string()))?;
        let not_here = result.missing.into_iter().map(|(name, _)| name).collect();
        missing = Some(match missing {
            None => not_here,
            Some(before) => &before & &not_here,
        });
    }
    if let Some(name) = missing.iter().flatten().next() {
        return Err(Error::Model {
            path: files[0].clone(),
            message: format!(
                "neither it nor a file beside it has {name}; give the folder with all files of the model"
            ),
        });
    }
    Ok(model.map(&mut Cast(dtype)))
}

/// Gives every parameter a type.
struct Cast(FloatDType);

impl<B: Backend> ModuleMapper<B> for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let dtype = self.0;
        param.map(|tensor| {
            if tensor.dtype() == dtype.into() {
                return tensor;
            }
            // The result of an operation is no parameter any more.
            tensor.cast(dtype).detach().require_grad()
        })
    }
}
