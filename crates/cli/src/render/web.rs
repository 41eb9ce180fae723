//! The address of the page.

use super::{View, WebAddress};

/// Two lines to paste: into a browser, and before that into a shell of a laptop.
pub fn web_address(addresses: &[WebAddress], _view: View) -> String {
    let lines = addresses.iter();
    lines
        .map(|one| format!("{}\n{}\n", one.url, one.ssh))
        .collect()
}
