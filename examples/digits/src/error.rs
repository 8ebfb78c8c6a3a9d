//! Everything that can go wrong, with the numbers and the way out.

use std::path::{Path, PathBuf};

/// An error of the training program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The data file does not hold what it should.
    #[error(
        "line {line} of data/digits.csv.gz: {message}; the README beside it says where the file comes from"
    )]
    Data {
        /// The line, counted from 1.
        line: usize,
        /// What does not fit.
        message: String,
    },

    /// A number is out of its range.
    #[error("{flag} is {value}; it must be {range}")]
    OutOfRange {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// What is allowed, in words.
        range: &'static str,
    },

    /// The folder holds another run, whose checkpoints a fresh start would overwrite.
    #[error(
        "{} holds checkpoints already; continue with --resume EPOCH, or name another --dir", dir.display()
    )]
    Occupied {
        /// The folder.
        dir: PathBuf,
    },

    /// `--resume` names an epoch without a checkpoint.
    #[error("no checkpoint of epoch {epoch} in {}: there are {found}; burn-train keeps the last two and the best", dir.display())]
    NoCheckpoint {
        /// The folder that was searched.
        dir: PathBuf,
        /// The epoch asked for.
        epoch: usize,
        /// The epochs that have one, in words.
        found: String,
    },

    /// `--resume` names the last epoch or a later one.
    #[error("--resume {epoch} of {epochs} epochs leaves nothing to train; give a larger --epochs")]
    NothingLeft {
        /// The epoch to resume after.
        epoch: usize,
        /// The epochs of the whole run.
        epochs: usize,
    },

    /// A file or folder cannot be read or written.
    #[error("cannot {action} {}: {source}; check the path, its permissions and the free space", path.display())]
    Io {
        /// `read`, `write`, `create` and the like.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// A settings file does not hold an `LctConfig`.
    #[error("{} is not a configuration of the compression: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },

    /// The settings of the compression cannot be used.
    #[error(transparent)]
    Config(#[from] burn_lct::ConfigError),

    /// The binary was built without the backend asked for.
    #[error("this binary was built without {what}; {remedy}")]
    NotBuilt {
        /// The backend.
        what: &'static str,
        /// How to get it, or what to use in its place.
        remedy: &'static str,
    },

    /// CUDA was asked for and cannot be used.
    #[error("--device cuda, but {reason}; use --device cpu")]
    NoCuda {
        /// What is missing.
        reason: String,
    },

    /// The device cannot compute in BF16.
    #[error("the device does not take BF16 as its default type: {message}")]
    NoBf16 {
        /// What Burn said.
        message: String,
    },
}

impl Error {
    /// Names the file and the action beside what the system said.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}
