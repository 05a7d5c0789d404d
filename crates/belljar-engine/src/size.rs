//! Sizes in bytes as people write them: `512M`, `2 GiB`, `1T`.

/// Parses a whole number of bytes, or a number with a unit: K, M, G or T (powers of 1024), in upper or lower case,
/// optionally followed by `B` or `iB`. Returns `None` for any other text, and for a size that does not fit.
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    digits.trim_end().parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_are_read_in_every_common_form() {
        for (text, bytes) in [
            ("0", 0),
            ("7", 7),
            ("7b", 7),
            ("64kb", 64 << 10),
            ("512M", 512 << 20),
            (" 512 mib ", 512 << 20),
            ("1g", 1 << 30),
            ("2GiB", 2 << 30),
            ("1T", 1 << 40),
            ("1tib", 1 << 40),
        ] {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in ["", " ", "M", "-1", "1.5G", "12X", "1P", "7i", "1 2", "M1", "99999999999T"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
