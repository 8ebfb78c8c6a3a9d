//! Measures optimizers' steps on the CUDA card.
//!
//! `cargo bench --bench optim --features cuda -- --report FILE.json` writes a list of rows, which `scripts/collect` completes.

#[cfg(feature = "cuda")]
#[path = "../codec/baseline.rs"]
mod baseline;
#[cfg(feature = "cuda")]
mod data;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
#[path = "../codec/events.rs"]
mod events;
#[cfg(feature = "cuda")]
mod exact;
#[cfg(feature = "cuda")]
mod kinds;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    #[cfg(feature = "cuda")]
    device::run()?;
    #[cfg(not(feature = "cuda"))]
    eprintln!("there is nothing to measure without the feature `cuda`");
    Ok(())
}
