//! The images: 1,797 handwritten digits of 8 by 8 pixels, part of the program.

use crate::Error;
use burn::data::dataloader::batcher::Batcher;
use burn::tensor::backend::Backend;
use burn::tensor::{Device, Int, Tensor, TensorData};
use flate2::read::GzDecoder;
use std::io::{BufRead, BufReader};

/// Pixels along one side.
pub const SIDE: usize = 8;
/// Kinds of digits.
pub const CLASSES: usize = 10;

const PIXELS: usize = SIDE * SIDE;
/// Images of the training part. The rest is for validation: 360 images, as scikit-learn's own examples hold out a fifth.
const TRAINING: usize = 1437;
const FILE: &[u8] = include_bytes!("../data/digits.csv.gz");

/// One image and what it shows.
#[derive(Clone, Debug)]
pub struct Digit {
    /// The pixels row by row, from 0 (white) to 16 (black).
    pub pixels: [u8; PIXELS],
    /// The digit, 0 to 9.
    pub label: u8,
}

/// All images.
#[derive(Clone, Debug)]
pub struct Digits {
    /// What the model is trained on.
    pub training: Vec<Digit>,
    /// What it is tested on after each epoch.
    pub validation: Vec<Digit>,
}

impl Digits {
    /// Unpacks the images.
    ///
    /// # Errors
    /// A line that is not 64 pixels and a digit.
    pub fn load() -> Result<Self, Error> {
        let mut training = Vec::with_capacity(TRAINING);
        for (index, line) in BufReader::new(GzDecoder::new(FILE)).lines().enumerate() {
            let wrong = |message| Error::Data {
                line: index + 1,
                message,
            };
            let line = line.map_err(|error| wrong(error.to_string()))?;
            training.push(parse(&line).map_err(wrong)?);
        }
        let validation = training.split_off(TRAINING.min(training.len()));
        Ok(Self {
            training,
            validation,
        })
    }
}

fn parse(line: &str) -> Result<Digit, String> {
    let mut pixels = [0; PIXELS];
    let mut fields = line.split(',');
    let mut next = |most: u8| {
        let field = fields.next().ok_or("it has fewer than 65 numbers")?;
        match field.trim().parse() {
            Ok(value) if value <= most => Ok(value),
            _ => Err(format!("{field:?} is not a number from 0 to {most}")),
        }
    };
    for pixel in &mut pixels {
        *pixel = next(16)?;
    }
    let label = next(9)?;
    match fields.next() {
        None => Ok(Digit { pixels, label }),
        Some(_) => Err("it has more than 65 numbers".into()),
    }
}

/// Some images on a device.
#[derive(Clone, Debug)]
pub struct Batch<B: Backend> {
    /// `[batch, 1, 8, 8]`, from -1 (white) to 1 (black).
    pub images: Tensor<B, 4>,
    /// `[batch]`, the digits.
    pub labels: Tensor<B, 1, Int>,
}

/// Puts images onto a device.
#[derive(Clone, Copy, Debug)]
pub struct DigitBatcher;

impl<B: Backend> Batcher<B, Digit, Batch<B>> for DigitBatcher {
    fn batch(&self, digits: Vec<Digit>, device: &Device<B>) -> Batch<B> {
        // An eighth is a power of two, so that BF16 holds every pixel exactly.
        let pixels = digits.iter().flat_map(|digit| digit.pixels);
        let pixels: Vec<f32> = pixels.map(|pixel| f32::from(pixel) / 8.0 - 1.0).collect();
        let labels: Vec<i32> = digits.iter().map(|digit| i32::from(digit.label)).collect();
        let count = digits.len();
        Batch {
            images: Tensor::from_data(TensorData::new(pixels, [count, 1, SIDE, SIDE]), device),
            labels: Tensor::from_data(TensorData::new(labels, [count]), device),
        }
    }
}
