//! The command line.

use std::path::PathBuf;

use burn_lct::Profile;
use clap::{Args, Parser, Subcommand};
use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};

/// Losslessly compressed tensors, on the command line.
#[derive(Debug, Parser)]
#[command(name = "lct", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say what compression does to the tensors of safetensors files.
    ///
    /// Every BF16 tensor is coded, decoded and compared; F32 and F16 tensors are rounded to BF16 first. Tensors of other
    /// types are handed through by the library and listed only. Entropy, Huffman and allocated sizes are in bits per
    /// exponent, of which a value has one besides 8 bits of sign and fraction; all metadata and spill are counted.
    #[command(after_long_help = EXIT_CODES)]
    Inspect(InspectArgs),
}

const EXIT_CODES: &str = "\
Exit codes:
  0  every tensor came back bit for bit
  1  a file cannot be read, or the report cannot be written
  2  the command line is wrong
  3  a tensor did not come back: a fault of this program";

/// What to inspect, and how to print it.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Safetensors files.
    #[arg(required = true, value_name = "FILE.safetensors")]
    pub files: Vec<PathBuf>,
    /// Print kinds instead of tensors: what stands before the first `/` of a name, else its last two components without
    /// layer numbers.
    #[arg(long)]
    pub by_kind: bool,
    /// Print everything as JSON: tensors, kinds and total.
    #[arg(long)]
    pub json: bool,
    /// Only these profiles, separated by commas [default: all].
    #[arg(long, value_delimiter = ',', value_parser = profile)]
    profile: Vec<Profile>,
}

impl InspectArgs {
    /// The profiles to measure.
    pub fn profiles(&self) -> &[Profile] {
        match self.profile.as_slice() {
            [] => &Profile::ALL,
            chosen => chosen,
        }
    }
}

/// Reads a profile's name as it is in JSON.
fn profile(name: &str) -> Result<Profile, Error> {
    Profile::deserialize(StrDeserializer::new(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<InspectArgs, clap::Error> {
        let Command::Inspect(args) = Cli::try_parse_from(line.split(' '))?.command;
        Ok(args)
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn profiles_are_chosen_by_name() {
        let args = parse("lct inspect a b --profile high,clean").unwrap();
        assert_eq!(args.files.len(), 2);
        assert_eq!(args.profiles(), [Profile::High, Profile::Clean]);
        assert_eq!(parse("lct inspect a").unwrap().profiles(), Profile::ALL);
    }

    #[test]
    fn unknown_profiles_are_refused_with_the_known_ones() {
        let error = parse("lct inspect a --profile best").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("`clean`"), "{error}");
        assert_eq!(parse("lct inspect").unwrap_err().exit_code(), 2);
    }
}
