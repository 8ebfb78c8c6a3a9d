//! Measures the codec.
//!
//! `cargo bench --bench codec` measures the host codec, with Criterion, beside zstd on the same bytes.
//! `cargo bench --bench codec --features cuda -- --device --report FILE.json` measures the kernels on the CUDA card.

#[cfg(feature = "cuda")]
mod baseline;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod events;
mod host;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    #[cfg(feature = "cuda")]
    if std::env::args().any(|argument| argument == "--device") {
        return device::run();
    }
    host::run();
    Ok(())
}
