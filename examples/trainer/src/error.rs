//! Everything that can go wrong, with the numbers and the way out.

use std::path::{Path, PathBuf};

/// An error of the training program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A corpus file cannot be read as UTF-8 text.
    #[error(
        "cannot read the corpus {}: {source}; give a UTF-8 text with --corpus FILE, or start the program in the \
         repository's root, where examples/nanogpt/data lies", path.display()
    )]
    Corpus {
        /// The file that was looked for.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },

    /// The text is shorter than one sequence.
    #[error(
        "the {part} part of the corpus has {tokens} tokens, and one sequence needs {needed}; use a longer text or a \
         preset with shorter sequences"
    )]
    CorpusTooSmall {
        /// `training` or `validation`.
        part: &'static str,
        /// The tokens there are.
        tokens: usize,
        /// The tokens that one sequence and its targets need.
        needed: usize,
    },

    /// The tokenizer could not be trained, read or applied.
    #[error("the tokenizer cannot {action}: {message}; delete {} to train it anew", path.display())]
    Tokenizer {
        /// What it was asked to do.
        action: &'static str,
        /// What the tokenizer library said.
        message: String,
        /// Where the tokenizer is cached.
        path: PathBuf,
    },

    /// A file of a model cannot be used.
    #[error("cannot use {}: {message}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// What does not fit, and what would.
        message: String,
    },

    /// The model has no row for some tokens.
    #[error(
        "the tokenizer has {tokens} tokens and the model's vocabulary only {vocabulary}; give the model's own \
         tokenizer.json"
    )]
    Vocabulary {
        /// The tokenizer's tokens.
        tokens: usize,
        /// The model's.
        vocabulary: usize,
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

    /// A JSON file does not hold what it should.
    #[error("{} is not the JSON that this version writes: {source}; write it anew", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },

    /// `--resume` found nothing to resume from.
    #[error("no checkpoint in {}; start without --resume, or name the folder that --checkpoint named before", dir.display())]
    NoCheckpoint {
        /// The folder that was searched.
        dir: PathBuf,
    },

    /// The checkpoint belongs to another run.
    #[error(
        "the checkpoint {} was written by a run with {field} = {found}, and this run has {expected}; give the same \
         arguments as then, or another --checkpoint folder", path.display()
    )]
    ForeignCheckpoint {
        /// The checkpoint's folder.
        path: PathBuf,
        /// The first setting that differs.
        field: String,
        /// Its value in the checkpoint.
        found: String,
        /// Its value in this run.
        expected: String,
    },

    /// The checkpoint cannot be read back, or not to the bits that were saved.
    #[error("the checkpoint {} is damaged: {message}; delete it, and --resume takes the one before it", path.display())]
    DamagedCheckpoint {
        /// The checkpoint's folder.
        path: PathBuf,
        /// What does not fit.
        message: String,
    },

    /// A record cannot be written.
    #[error("cannot save {}: {message}; check the path, its permissions and the free space", path.display())]
    Save {
        /// The file.
        path: PathBuf,
        /// What Burn's recorder said.
        message: String,
    },

    /// A model whose weights are lost.
    #[error(
        "the validation loss at sequences of {sequence} tokens is {loss}, so longer ones would say nothing; the card may have \
         refused buffers, which the messages above then name, or --lr is too high"
    )]
    LossLost {
        /// Tokens of a sequence.
        sequence: usize,
        /// What came in place of a number.
        loss: f64,
    },

    /// A flag needs another flag.
    #[error("{flag} needs {needs}")]
    MissingFlag {
        /// The flag that was given.
        flag: &'static str,
        /// The flag that was not.
        needs: &'static str,
    },

    /// A flag of the program's own loop was given together with several devices.
    #[error("{flag} works with one device only; leave --devices and --strategy away, or {flag}")]
    OneDevice {
        /// The flag.
        flag: &'static str,
    },

    /// More cards were asked for than there are.
    #[error("--devices {asked}, but there {} {found}", if *found == 1 { "is" } else { "are" })]
    TooFewCards {
        /// The cards that were asked for.
        asked: usize,
        /// The cards that the driver sees.
        found: i32,
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

    /// CUDA was asked for and cannot be used.
    #[error(
        "--device cuda, but {reason}; use --device cpu, or --device auto to take what there is"
    )]
    NoCuda {
        /// What is missing.
        reason: String,
    },

    /// The binary was built without the backend asked for.
    #[error("this binary was built without {what}; {remedy}")]
    NotBuilt {
        /// The backend or the feature.
        what: &'static str,
        /// How to get it, or what to use in its place.
        remedy: &'static str,
    },

    /// The device reported an error.
    #[error("the device failed while {action}: {message}; a smaller --batch needs less memory")]
    Device {
        /// What the program was doing.
        action: &'static str,
        /// What the device said.
        message: String,
    },

    /// `--timeline` was asked for and nothing says how many bytes there are.
    #[error(
        "--timeline, but there is no allocator to read on a CPU; use --backend lct, which counts its own tensors, or \
         --device cuda"
    )]
    NoAllocator,

    /// `--timeline` was asked for and no step is left to watch.
    #[error(
        "--timeline, but all {steps} steps are done; train from the start, or resume an earlier checkpoint"
    )]
    NoStepLeft {
        /// The steps of the whole run.
        steps: usize,
    },

    /// A report holds no timeline to draw.
    #[error("the report {} has no timeline; train again with --timeline FILE.svg", path.display())]
    NoTimeline {
        /// The report.
        path: PathBuf,
    },

    /// A picture cannot be drawn.
    #[error("cannot draw {}: {message}; the figures are in the report that --report writes", path.display())]
    Draw {
        /// The file that was to hold the picture.
        path: PathBuf,
        /// What the drawing library said.
        message: String,
    },

    /// The two reports have nothing to compare.
    #[error("{} and {} have no training step in common; compare two runs over the same steps", a.display(), b.display())]
    NothingToCompare {
        /// The first report.
        a: PathBuf,
        /// The second report.
        b: PathBuf,
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

    /// Names the file beside what the JSON parser said.
    pub fn json(path: &Path) -> impl FnOnce(serde_json::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Json { path, source }
    }

    /// Names what the program was doing when the device failed.
    pub fn device<E: core::fmt::Debug>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Device {
            action,
            message: format!("{error:?}"),
        }
    }
}
