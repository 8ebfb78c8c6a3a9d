//! A small convolutional classifier.

use crate::data::{Batch, CLASSES, SIDE};
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig, PaddingConfig2d, Relu,
};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};

/// Channels of the first convolution.
const NARROW: usize = 32;
/// Channels of the second convolution.
const WIDE: usize = 64;
/// Values between the two linear layers.
const HIDDEN: usize = 128;

/// Two convolutions with norms, a pool, two linear layers.
///
/// With a batch of 64, its activations have from 65,536 to 262,144 values, and its three larger weights from 18,432 to
/// 131,072: enough for the compressed backend to pack them.
#[derive(Module, Debug)]
pub struct Classifier<B: Backend> {
    conv1: Conv2d<B>,
    norm1: BatchNorm<B>,
    conv2: Conv2d<B>,
    norm2: BatchNorm<B>,
    pool: MaxPool2d,
    dropout: Dropout,
    linear1: Linear<B>,
    linear2: Linear<B>,
    relu: Relu,
}

impl<B: Backend> Classifier<B> {
    /// A classifier with random weights.
    pub fn new(device: &B::Device) -> Self {
        let conv = |from, to| {
            Conv2dConfig::new([from, to], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .with_bias(false)
                .init(device)
        };
        let pooled = (SIDE / 2) * (SIDE / 2);
        Self {
            conv1: conv(1, NARROW),
            norm1: BatchNormConfig::new(NARROW).init(device),
            conv2: conv(NARROW, WIDE),
            norm2: BatchNormConfig::new(WIDE).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            dropout: DropoutConfig::new(0.25).init(),
            linear1: LinearConfig::new(WIDE * pooled, HIDDEN).init(device),
            linear2: LinearConfig::new(HIDDEN, CLASSES).init(device),
            relu: Relu::new(),
        }
    }

    /// Takes the first convolution out of the training.
    #[must_use]
    pub fn freeze_first(mut self) -> Self {
        self.conv1 = self.conv1.no_grad();
        self
    }

    /// Logits of images.
    ///
    /// # Shapes
    /// - images: `[batch, 1, 8, 8]`
    /// - output: `[batch, 10]`
    pub fn forward(&self, images: Tensor<B, 4>) -> Tensor<B, 2> {
        let x = self
            .relu
            .forward(self.norm1.forward(self.conv1.forward(images)));
        let x = self.relu.forward(self.norm2.forward(self.conv2.forward(x)));
        let x = self.pool.forward(x).flatten(1, 3);
        let x = self.linear1.forward(self.dropout.forward(x));
        let x = self.dropout.forward(self.relu.forward(x));
        self.linear2.forward(x)
    }

    fn classify(&self, images: Tensor<B, 4>, labels: Tensor<B, 1, Int>) -> ClassificationOutput<B> {
        let output = self.forward(images);
        let loss = CrossEntropyLossConfig::new()
            .init(&output.device())
            .forward(output.clone(), labels.clone());
        ClassificationOutput::new(loss, output, labels)
    }
}

impl<B: AutodiffBackend> TrainStep for Classifier<B> {
    type Input = Batch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<ClassificationOutput<B>> {
        let item = self.classify(batch.images, batch.labels);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl<B: Backend> InferenceStep for Classifier<B> {
    type Input = Batch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Batch<B>) -> ClassificationOutput<B> {
        self.classify(batch.images, batch.labels)
    }
}
