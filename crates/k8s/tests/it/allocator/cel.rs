//! So much of CEL as our classes and templates are written in: `||`, `&&`, `!`, brackets, `==`, `>=`, `<=`, `in`, texts, numbers,
//! lists, a device's driver, attributes and capacities, `contains('…')` and `compareTo(quantity('…'))`.
//!
//! What is missing is an error, as in CEL (`cel/compile.go` of k8s.io/dynamic-resource-allocation 0.36.2): a domain that a
//! device has nothing of is an empty map, a name that is not in it ends the search. An error beside `false` of `&&` is `false`,
//! beside `true` of `||` it is `true`.

use divvy_k8s::base::slices::bytes;
use k8s_openapi::api::resource::v1::Device;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(String),
    Int(i64),
    Bool(bool),
    List(Vec<Value>),
    Amount(u64),
}

/// Whether a device is one that the expression selects.
///
/// # Errors
/// It asks for what the device does not have. Panics at what is not understood here: a test is then to be written otherwise.
pub fn selects(expression: &str, driver: &str, device: &Device) -> Result<bool, String> {
    let mut reader = Reader {
        rest: expression,
        driver,
        device,
    };
    let value = reader.all();
    assert!(
        reader.rest.trim().is_empty(),
        "not understood: {}",
        reader.rest
    );
    match value? {
        Value::Bool(selected) => Ok(selected),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

/// `left || right` if `decides` is true, else `left && right`: one side that decides counts for more than an error.
fn joined(
    left: Result<Value, String>,
    right: Result<Value, String>,
    decides: bool,
) -> Result<Value, String> {
    let decided = Ok(Value::Bool(decides));
    if left == decided || right == decided {
        decided
    } else {
        left.and(right)
    }
}

struct Reader<'a> {
    rest: &'a str,
    driver: &'a str,
    device: &'a Device,
}

impl Reader<'_> {
    fn take(&mut self, token: &str) -> bool {
        let after = self.rest.trim_start().strip_prefix(token);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn need(&mut self, token: &str) {
        assert!(
            self.take(token),
            "`{token}` is missing before: {}",
            self.rest
        );
    }

    fn all(&mut self) -> Result<Value, String> {
        let mut result = self.both();
        while self.take("||") {
            let right = self.both();
            result = joined(result, right, true);
        }
        result
    }

    fn both(&mut self) -> Result<Value, String> {
        let mut result = self.compared();
        while self.take("&&") {
            let right = self.compared();
            result = joined(result, right, false);
        }
        result
    }

    fn compared(&mut self) -> Result<Value, String> {
        let left = self.value();
        if self.take("==") {
            let right = self.value();
            return Ok(Value::Bool(left? == right?));
        }
        for (operator, says) in [
            (">=", (|left, right| left >= right) as fn(i64, i64) -> bool),
            ("<=", |left, right| left <= right),
        ] {
            if self.take(operator) {
                let right = self.value();
                let (Value::Int(left), Value::Int(right)) = (left?, right?) else {
                    panic!("`{operator}` of what is no number: {}", self.rest)
                };
                return Ok(Value::Bool(says(left, right)));
            }
        }
        if self.take("in ") {
            let Value::List(list) = self.value()? else {
                panic!("`in` of what is no list: {}", self.rest)
            };
            return Ok(Value::Bool(list.contains(&left?)));
        }
        left
    }

    fn value(&mut self) -> Result<Value, String> {
        if self.take("!") {
            return match self.value()? {
                Value::Bool(is) => Ok(Value::Bool(!is)),
                other => panic!("`!` of {other:?}"),
            };
        }
        if self.take("(") {
            let inner = self.all();
            self.need(")");
            return inner;
        }
        if self.take("'") {
            return Ok(Value::Text(self.until("'")));
        }
        if self.take("[") {
            let mut list = Vec::new();
            while !self.take("]") {
                list.push(self.value()?);
                self.take(",");
            }
            return Ok(Value::List(list));
        }
        if self.take("device.driver") {
            return Ok(Value::Text(self.driver.to_owned()));
        }
        if self.take("device.attributes['") {
            let (domain, name) = self.entry();
            let attribute = self.attribute(&domain, &name);
            if self.take(".contains('") {
                let part = self.until("')");
                return match attribute? {
                    Value::Text(text) => Ok(Value::Bool(text.contains(&part))),
                    other => panic!("`contains` of {other:?}"),
                };
            }
            return attribute;
        }
        if self.take("device.capacity['") {
            let (domain, name) = self.entry();
            let capacity = self.capacity(&domain, &name);
            if self.take(".compareTo(quantity('") {
                let other = Quantity(self.until("'))"));
                let other = bytes(&other).expect("a whole number").get();
                let Value::Amount(this) = capacity? else {
                    panic!("a capacity is an amount")
                };
                return Ok(Value::Int(this.cmp(&other) as i64));
            }
            return capacity;
        }
        let text = self.rest.trim_start();
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let number = text[..digits].parse();
        self.rest = &text[digits..];
        Ok(Value::Int(
            number.unwrap_or_else(|_| panic!("not understood: {text}")),
        ))
    }

    /// `gpu.divvy.dev'].uuid`, behind the quote.
    fn entry(&mut self) -> (String, String) {
        let domain = self.until("'");
        self.need("].");
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (domain, name.to_owned())
    }

    fn until(&mut self, end: &str) -> String {
        let (text, rest) = self.rest.split_once(end).expect("it ends");
        self.rest = rest;
        text.to_owned()
    }

    fn attribute(&self, domain: &str, name: &str) -> Result<Value, String> {
        let attributes = self.device.attributes.as_ref();
        let found = attributes.and_then(|all| all.get(self.key(domain, name).as_str()));
        let found = found.ok_or_else(|| format!("no such key: {name}"))?;
        Ok(match (&found.string, found.int) {
            (Some(text), _) => Value::Text(text.clone()),
            (None, Some(number)) => Value::Int(number),
            other => panic!("an attribute {other:?}"),
        })
    }

    fn capacity(&self, domain: &str, name: &str) -> Result<Value, String> {
        let capacities = self.device.capacity.as_ref();
        let found = capacities.and_then(|all| all.get(self.key(domain, name).as_str()));
        let found = found.ok_or_else(|| format!("no such key: {name}"))?;
        Ok(Value::Amount(
            bytes(&found.value).expect("a whole number").get(),
        ))
    }

    /// What a device calls it: names of its driver's own domain go without it.
    fn key(&self, domain: &str, name: &str) -> String {
        if domain == self.driver {
            name.to_owned()
        } else {
            format!("{domain}/{name}")
        }
    }
}
