//! Quantities in the API server's canonical form, so that a slice that is read back equals the one that was written.

use divvy_core::units::Bytes;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity::Quantity as Amount;

/// Whole MiB, by the largest binary unit that takes no fraction: `80Gi`, `81559Mi`.
pub(super) fn of_bytes(bytes: Bytes) -> Quantity {
    let mib = bytes.get() >> 20;
    Quantity(match mib {
        0 => "0".to_owned(),
        _ if mib.is_multiple_of(1 << 20) => format!("{}Ti", mib >> 20),
        _ if mib.is_multiple_of(1 << 10) => format!("{}Gi", mib >> 10),
        _ => format!("{mib}Mi"),
    })
}

pub(super) fn of_count(count: u32) -> Quantity {
    Quantity(count.to_string())
}

/// The bytes that a quantity says; `None` where it is none, negative or no whole number.
pub fn bytes(quantity: &Quantity) -> Option<Bytes> {
    let amount: Amount = quantity.0.parse().ok()?;
    amount.count().map(Bytes::new)
}

/// The same amount in one way of writing: `1Gi` and `1024Mi` are one. What is no amount stays as it is.
pub(super) fn plain(quantity: &Quantity) -> Quantity {
    let amount = quantity.0.parse::<Amount>().ok().and_then(Amount::count);
    amount.map_or_else(|| quantity.clone(), |count| Quantity(count.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_the_api_server_writes_them() {
        for (mib, text) in [
            (80 << 10, "80Gi"),
            (81_559, "81559Mi"),
            (1 << 20, "1Ti"),
            (1, "1Mi"),
        ] {
            let quantity = of_bytes(Bytes::mib(mib));
            assert_eq!(quantity.0, text);
            assert_eq!(bytes(&quantity), Some(Bytes::mib(mib)));
        }
    }

    #[test]
    fn one_amount_is_one_however_it_is_written() {
        let quantity = |text: &str| Quantity(text.to_owned());
        assert_eq!(plain(&quantity("1Gi")), plain(&quantity("1024Mi")));
        assert_ne!(plain(&quantity("1G")), plain(&quantity("1Gi")));
        assert_eq!(plain(&quantity("much")), quantity("much"));
        assert_eq!(bytes(&quantity("500m")), None);
    }
}
