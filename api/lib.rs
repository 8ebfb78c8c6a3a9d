//! There is nothing here but a [test](tests/unchanged.rs).
