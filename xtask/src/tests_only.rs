//! Attributes of code that only tests compile: `#[test]`, and `#[cfg(…)]` with a predicate that needs `test`.

use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

/// Whether only tests compile what has these attributes.
pub fn is_tests_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        let needs = || {
            attribute
                .parse_args::<Meta>()
                .is_ok_and(|meta| needs_test(&meta))
        };
        path.is_ident("test") || path.is_ident("cfg") && needs()
    })
}

fn needs_test(predicate: &Meta) -> bool {
    let Meta::List(list) = predicate else {
        return predicate.path().is_ident("test");
    };
    let inner = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    let inner = inner.unwrap_or_default();
    match () {
        () if list.path.is_ident("all") => inner.iter().any(needs_test),
        () if list.path.is_ident("any") => inner.iter().all(needs_test),
        () => false,
    }
}
