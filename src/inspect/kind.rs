//! Which tensors belong together.

/// The kind of a tensor by its name.
///
/// In a capture of several kinds (`weights/blocks.0.qkv.weight`), what stands before the first `/`. In a model, the last two
/// components without numbers, so that the same weight of all layers is one kind.
///
/// ```
/// use burn_lct::inspect::kind;
///
/// assert_eq!(kind("grad:q/blocks.0.attention"), "grad:q");
/// assert_eq!(kind("encoder.layer.3.attention.query.weight"), "query.weight");
/// assert_eq!(kind("features.0.weight"), "features.weight");
/// ```
pub fn kind(name: &str) -> String {
    if let Some((kind, _)) = name.split_once('/') {
        return kind.into();
    }
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let words: Vec<&str> = name.split('.').filter(|part| !is_number(part)).collect();
    match words.as_slice() {
        [] => name.into(),
        words => words[words.len().saturating_sub(2)..].join("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_odd_names_are_kinds_too() {
        for (name, expected) in [
            ("weight", "weight"),
            ("0", "0"),
            ("", ""),
            ("h.11.mlp.c_fc.weight", "c_fc.weight"),
            ("model.layers.0.self_attn.q_proj.weight", "q_proj.weight"),
            ("q/a/b", "q"),
        ] {
            assert_eq!(kind(name), expected);
        }
    }
}
