//! The part of a document that a program writes: the text between two markers.

use std::fs;
use std::io::{Error, Result};
use std::path::Path;

/// Puts a text between the first `begin` of a document and the first `end` after it.
///
/// # Errors
/// The document cannot be read or written, or it has no such markers.
pub fn rewrite(page: &Path, (begin, end): (&str, &str), text: &str) -> Result<()> {
    let named = |what: &str, error| Error::other(format!("{what} {}: {error}", page.display()));
    let missing = |what: &str| Error::other(format!("{} has no {what} marker", page.display()));
    let whole = fs::read_to_string(page).map_err(|error| named("read", error))?;
    let (before, rest) = whole.split_once(begin).ok_or_else(|| missing("first"))?;
    let (_, after) = rest.split_once(end).ok_or_else(|| missing("last"))?;
    let whole = [before, begin, text, end, after].concat();
    fs::write(page, whole).map_err(|error| named("write", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_text_between_the_markers_changes() {
        let folder = tempfile::tempdir().expect("a folder");
        let page = folder.path().join("page.md");
        fs::write(&page, "a <b>old<e> z <b>").expect("written");
        rewrite(&page, ("<b>", "<e>"), "new").expect("both markers are there");
        let text = fs::read_to_string(&page).expect("read");
        assert_eq!(text, "a <b>new<e> z <b>");
        let error = rewrite(&page, ("<b>", "<x>"), "").expect_err("no last marker");
        assert!(error.to_string().ends_with("has no last marker"), "{error}");
    }
}
