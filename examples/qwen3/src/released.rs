//! A step that lets go of each layer's gradients before the next layer's come into being.
//!
//! The backward pass is cut between the layers: each layer's graph ends at a leaf that holds what the layer before it
//! made. So each has a backward pass of its own, after which its gradients are complete and the optimizer takes them. The
//! gradient at the cut goes on exactly: that of `(output · gradient).sum()` for `output` is `gradient`, bit for bit. A layer
//! further down does not use the weights that changed.

use crate::model::Qwen3;
use burn::{
    optim::GradientsParams,
    tensor::{Int, Tensor, backend::AutodiffBackend},
};
use trainer::{
    Error,
    losses::Losses,
    optim::{Optim, TrainBackend},
    train::Pass,
};

/// A step on one batch: the same new weights as of all gradients first and then the optimizer.
///
/// # Errors
/// A device that fails.
pub fn step<B: TrainBackend>(
    pass: &mut Pass<'_, B>,
    mut model: Qwen3<B>,
    optim: &mut Optim<B, Qwen3<B>>,
    (tokens, targets): (Tensor<B, 2, Int>, Tensor<B, 2, Int>),
) -> Result<(Qwen3<B>, Losses<B>), Error> {
    let rotation = model.rotation(&tokens);
    let embedded = model.embed_tokens.forward(tokens);
    let mut leaf = cut(&embedded);
    let mut layers = Vec::new();
    for layer in &model.layers {
        let output = layer.forward(leaf.clone(), &rotation);
        let next = cut(&output);
        layers.push((leaf, output));
        leaf = next;
    }
    let mut losses = Losses::new();
    let loss = losses.of(model.surprise_of(leaf.clone(), targets));
    pass.forward_ends()?;

    let mut gradients = loss.backward();
    let mut complete = GradientsParams::from_module(&mut gradients, &model);
    // A tied embedding gets its second part at the other end of the pass.
    let shared = match model.lm_head {
        None => complete.remove::<B::InnerBackend, 2>(model.embed_tokens.weight.id),
        Some(_) => None,
    };
    model = optim.step(pass.rate, model, complete);
    let mut arriving = gradient_at::<B>(&leaf, &mut gradients);
    drop((leaf, gradients));

    while let Some((leaf, output)) = layers.pop() {
        let mut gradients = backward_from(output, arriving);
        let layer = &model.layers[layers.len()];
        let complete = GradientsParams::from_module(&mut gradients, layer);
        arriving = gradient_at::<B>(&leaf, &mut gradients);
        drop((leaf, gradients));
        model = optim.step(pass.rate, model, complete);
    }

    let mut gradients = backward_from(embedded, arriving);
    let mut complete = GradientsParams::from_module(&mut gradients, &model.embed_tokens);
    if let Some(shared) = shared {
        let id = model.embed_tokens.weight.id;
        let own = complete.remove::<B::InnerBackend, 2>(id);
        complete.register(id, own.map_or(shared.clone(), |own| own + shared));
    }
    pass.backward_ends()?;
    model = optim.step(pass.rate, model, complete);
    pass.step_ends()?;
    Ok((model, losses))
}

/// A leaf with the same values, at which a backward pass ends.
fn cut<B: AutodiffBackend>(x: &Tensor<B, 3>) -> Tensor<B, 3> {
    Tensor::from_inner(x.clone().inner()).require_grad()
}

/// A backward pass from `x` with its gradient given.
fn backward_from<B: AutodiffBackend>(
    x: Tensor<B, 3>,
    gradient: Tensor<B::InnerBackend, 3>,
) -> B::Gradients {
    (x * Tensor::from_inner(gradient)).sum().backward()
}

/// The gradient at a leaf.
fn gradient_at<B: AutodiffBackend>(
    leaf: &Tensor<B, 3>,
    gradients: &mut B::Gradients,
) -> Tensor<B::InnerBackend, 3> {
    leaf.grad_remove(gradients)
        .expect("every layer passes a gradient on")
}
