//! Checkpoints that a run resumes from bit for bit.
//!
//! A checkpoint is a folder `step-00000100` with the model's and the optimizer's records and a `meta.json` that says
//! which run wrote it and what the digests were. It is written beside its final name and renamed, so it is whole or
//! not there.

use crate::{
    Error, digest,
    optim::{Optim, TrainBackend},
};
use burn::{
    module::AutodiffModule,
    record::{BinFileRecorder, FullPrecisionSettings, PrecisionSettings, Recorder},
    tensor::bf16,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::xxh3_128;

/// Records floats as BF16, the type they have here. (Burn's `CompactRecorder` would turn them into F16.)
#[derive(Clone, Debug, Default)]
pub struct Bf16Settings;

impl PrecisionSettings for Bf16Settings {
    type FloatElem = bf16;
    type IntElem = i32;
}

/// The recorder of the checkpoints.
pub type Bf16Recorder = BinFileRecorder<Bf16Settings>;

/// The checkpoints that are kept; older ones are deleted.
const KEPT: usize = 2;

/// What `meta.json` holds.
#[derive(Serialize, Deserialize)]
struct Meta {
    /// Completed steps.
    step: usize,
    /// What makes the run what it is, as in [`crate::train::Setup::identity`].
    identity: Map<String, Value>,
    weights_digest: String,
    state_digest: String,
    /// Digests of the files' bytes, which are checked before anything is decoded.
    files: BTreeMap<String, String>,
}

/// The files that hold the model and the optimizer's state.
const FILES: [&str; 2] = ["model.bin", "optimizer.bin"];

/// Writes the checkpoint of `step` completed steps below `dir`, and deletes all but the newest ones.
///
/// # Errors
/// A file that cannot be written.
pub fn save<B: TrainBackend, M: AutodiffModule<B>>(
    dir: &Path,
    step: usize,
    identity: &Map<String, Value>,
    model: &M,
    optim: &Optim<B, M>,
) -> Result<PathBuf, Error> {
    let path = dir.join(format!("step-{step:08}"));
    let partial = dir.join(format!(".partial-{}", std::process::id()));
    if partial.exists() {
        fs::remove_dir_all(&partial).map_err(Error::io("replace", &partial))?;
    }
    fs::create_dir_all(&partial).map_err(Error::io("create", &partial))?;

    let saved = |file: &str, result: Result<(), burn::record::RecorderError>| {
        result.map_err(|error| Error::Save {
            path: partial.join(file),
            message: error.to_string(),
        })
    };
    let record = model.clone().into_record();
    saved(
        "model.bin",
        Recorder::<B>::record(&Bf16Recorder::default(), record, partial.join("model")),
    )?;
    saved("optimizer.bin", optim.save(partial.join("optimizer")))?;

    let files = FILES.map(|file| Ok((file.to_owned(), file_digest(&partial.join(file))?)));
    let meta = Meta {
        step,
        files: files.into_iter().collect::<Result<_, Error>>()?,
        identity: identity.clone(),
        weights_digest: digest::weights(model),
        state_digest: optim.digest::<FullPrecisionSettings>(&digest::parameter_order(model))?,
    };
    let meta_path = partial.join("meta.json");
    let json = serde_json::to_string_pretty(&meta).map_err(Error::json(&meta_path))?;
    fs::write(&meta_path, json).map_err(Error::io("write", &meta_path))?;

    if path.exists() {
        fs::remove_dir_all(&path).map_err(Error::io("replace", &path))?;
    }
    fs::rename(&partial, &path).map_err(Error::io("write", &path))?;

    let all = list(dir)?;
    for old in &all[..all.len().saturating_sub(KEPT)] {
        fs::remove_dir_all(old).map_err(Error::io("delete", old))?;
    }
    Ok(path)
}

/// Reads the newest checkpoint below `dir`: the completed steps, the model and the optimizer.
///
/// # Errors
/// No checkpoint, one of another run, or one that does not give back the bits that were saved.
pub fn load<B: TrainBackend, M: AutodiffModule<B>>(
    dir: &Path,
    identity: &Map<String, Value>,
    model: M,
    optim: Optim<B, M>,
    device: &B::Device,
) -> Result<(usize, M, Optim<B, M>), Error> {
    let path = list(dir)?.pop().ok_or_else(|| Error::NoCheckpoint {
        dir: dir.to_path_buf(),
    })?;
    let meta_path = path.join("meta.json");
    let json = fs::read_to_string(&meta_path).map_err(Error::io("read", &meta_path))?;
    let meta: Meta = serde_json::from_str(&json).map_err(Error::json(&meta_path))?;
    check_identity(&path, &meta.identity, identity)?;

    let damaged = |message: String| Error::DamagedCheckpoint {
        path: path.clone(),
        message,
    };
    // A decoder would believe damaged lengths and shapes.
    for file in FILES {
        let saved = meta.files.get(file).map_or("none", String::as_str);
        check_digest(file, saved, &file_digest(&path.join(file))?).map_err(damaged)?;
    }
    let record = Recorder::<B>::load(&Bf16Recorder::default(), path.join("model"), device)
        .map_err(|error| damaged(format!("model.bin: {error}")))?;
    let model = model.load_record(record);
    let optim = optim
        .load(path.join("optimizer"), device)
        .map_err(|error| damaged(format!("optimizer.bin: {error}")))?;

    check_digest("model.bin", &meta.weights_digest, &digest::weights(&model)).map_err(damaged)?;
    let state = optim.digest::<FullPrecisionSettings>(&digest::parameter_order(&model))?;
    let damaged = |message: String| Error::DamagedCheckpoint {
        path: path.clone(),
        message,
    };
    check_digest("optimizer.bin", &meta.state_digest, &state).map_err(damaged)?;
    Ok((meta.step, model, optim))
}

/// The checkpoints below a folder, oldest first; none where there is no folder.
fn list(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io("read", dir))? {
        let path = entry.map_err(Error::io("read", dir))?.path();
        let is_step = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("step-"));
        if is_step && path.is_dir() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn check_identity(
    path: &Path,
    found: &Map<String, Value>,
    expected: &Map<String, Value>,
) -> Result<(), Error> {
    let text = |map: &Map<String, Value>, field: &str| {
        map.get(field).map_or("nothing".into(), Value::to_string)
    };
    match expected
        .keys()
        .chain(found.keys())
        .find(|field| text(found, field) != text(expected, field))
    {
        None => Ok(()),
        Some(field) => Err(Error::ForeignCheckpoint {
            path: path.to_path_buf(),
            field: field.clone(),
            found: text(found, field),
            expected: text(expected, field),
        }),
    }
}

fn file_digest(path: &Path) -> Result<String, Error> {
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    Ok(format!("{:032x}", xxh3_128(&bytes)))
}

fn check_digest(file: &str, saved: &str, loaded: &str) -> Result<(), String> {
    if saved == loaded {
        Ok(())
    } else {
        Err(format!(
            "{file} had the digest {saved} when it was saved and has {loaded} now"
        ))
    }
}
