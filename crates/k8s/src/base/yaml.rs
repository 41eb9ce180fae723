//! YAML files of users, with anchors and merge keys as Helm and kubectl read them, and a bound on what aliases repeat.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess,
};
use yaml_serde::Value as Yaml;

/// Bytes of a file: the API server takes no object larger than about 1.5 MiB.
const LARGEST_FILE: usize = 2 << 20;

/// Bytes of a file's values with aliases written out: a file without aliases has a few times its size in values. Quotas
/// of a large site have some hundred kilobytes; a bomb of aliases has no bound otherwise. Files of a large site are far
/// smaller; without the bound, a bomb of aliases would fill the memory.
const LARGEST_VALUES: usize = 16 << 20;

/// Bytes that a value takes beside its text.
const OF_A_VALUE: usize = 32;

/// The key whose value is merged into its mapping.
const MERGE: &str = "<<";

/// Why a text is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum YamlError {
    #[error("not valid YAML: {0}")]
    Syntax(String),
    #[error("it is larger than {} MiB", LARGEST_FILE >> 20)]
    File,
    #[error("its aliases repeat more than {} MiB of values; remove aliases", LARGEST_VALUES >> 20)]
    Values,
    #[error("`{MERGE}` is not a mapping or a list of mappings")]
    Merge,
}

/// Reads a file of one document.
///
/// # Errors
/// [`YamlError`].
pub fn parse(text: &str) -> Result<Yaml, YamlError> {
    bound(text)?;
    let mut value = yaml_serde::from_str(text).map_err(syntax)?;
    merge(&mut value)?;
    Ok(value)
}

/// Reads a file of any number of documents.
///
/// # Errors
/// [`YamlError`], with the number of the document.
pub fn documents(text: &str) -> Result<Vec<Yaml>, (usize, YamlError)> {
    bound(text).map_err(|error| (1, error))?;
    let read = |(at, document)| {
        let read = de::Deserialize::deserialize(document).map_err(syntax);
        let merged = read.and_then(|mut value: Yaml| merge(&mut value).map(|()| value));
        merged.map_err(|error| (at + 1, error))
    };
    let documents = yaml_serde::Deserializer::from_str(text).enumerate();
    documents.map(read).collect()
}

fn syntax(error: yaml_serde::Error) -> YamlError {
    YamlError::Syntax(error.to_string())
}

/// Reads a text without keeping it, to know how much its aliases repeat.
fn bound(text: &str) -> Result<(), YamlError> {
    if text.len() > LARGEST_FILE {
        return Err(YamlError::File);
    }
    let left = Cell::new(LARGEST_VALUES);
    for document in yaml_serde::Deserializer::from_str(text) {
        match Budget(&left).deserialize(document) {
            Ok(()) => {}
            // The library's own bound is one on the number of aliases.
            Err(error) if left.get() == 0 || error.to_string().contains("repetition limit") => {
                return Err(YamlError::Values);
            }
            // The second reading has the same error, which names the line. The documents behind it are this one again.
            Err(_) => break,
        }
    }
    Ok(())
}

/// Puts the mappings of each merge key into the mapping that has it. What the mapping has itself takes precedence, and
/// then the earlier mapping of a list. The library's own merge changes the order of keys, and leaves a merge within a
/// merge.
fn merge(value: &mut Yaml) -> Result<(), YamlError> {
    match value {
        Yaml::Mapping(fields) => {
            fields.values_mut().try_for_each(merge)?;
            let merged = match fields.shift_remove(MERGE) {
                None | Some(Yaml::Null) => Vec::new(),
                Some(Yaml::Sequence(several)) => several,
                Some(one) => vec![one],
            };
            for one in merged {
                let Yaml::Mapping(one) = one else {
                    return Err(YamlError::Merge);
                };
                for (key, value) in one {
                    fields.entry(key).or_insert(value);
                }
            }
            Ok(())
        }
        Yaml::Sequence(items) => items.iter_mut().try_for_each(merge),
        Yaml::Tagged(tagged) => merge(&mut tagged.value),
        _ => Ok(()),
    }
}

/// Counts the bytes of values down to nothing.
#[derive(Clone, Copy)]
struct Budget<'a>(&'a Cell<usize>);

impl Budget<'_> {
    fn spend<E: de::Error>(self, bytes: usize) -> Result<(), E> {
        let left = self.0.get().saturating_sub(bytes + OF_A_VALUE);
        self.0.set(left);
        match left {
            0 => Err(E::custom("too many values")),
            _ => Ok(()),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Budget<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, of: D) -> Result<(), D::Error> {
        of.deserialize_any(self)
    }
}

impl<'de> de::Visitor<'de> for Budget<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any value")
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<(), E> {
        self.spend(0)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<(), E> {
        self.spend(0)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<(), E> {
        self.spend(0)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<(), E> {
        self.spend(0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        self.spend(text.len())
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.spend(0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.spend(0)?;
        while items.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        self.spend(0)?;
        while fields.next_entry_seed(self, self)?.is_some() {}
        Ok(())
    }

    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<(), A::Error> {
        let ((), value) = tagged.variant_seed(self)?;
        value.newtype_variant_seed(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Yaml {
        parse(text).unwrap()
    }

    #[test]
    fn merge_keys_of_a_file_are_filled_in_at_every_depth_and_in_order() {
        let text = "base: &base {a: 1, b: {x: 1}}\nmid: &mid {<<: *base, c: 3}\nall:\n  <<: [*mid, {b: 9, d: 4}]\n  z: 0\n  a: 2\n\
                    list: [{<<: *base}]\nnone: {<<: }\n";
        let expected = "base: {a: 1, b: {x: 1}}\nmid: {c: 3, a: 1, b: {x: 1}}\nall: {z: 0, a: 2, c: 3, b: {x: 1}, d: 4}\n\
                        list: [{a: 1, b: {x: 1}}]\nnone: {}\n";
        assert_eq!(read(text), read(expected));
        let keys = |value: &Yaml| -> Vec<String> {
            let fields = value["all"].as_mapping().unwrap();
            fields
                .keys()
                .filter_map(Yaml::as_str)
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(keys(&read(text)), ["z", "a", "c", "b", "d"]);
        for wrong in ["a: {<<: 1}", "a: {<<: [1]}", "a: {<<: text}"] {
            assert_eq!(parse(wrong), Err(YamlError::Merge), "{wrong}");
        }
        let both = documents("a: &a {x: 1}\nb: {<<: *a}\n---\nc: 1\n").unwrap();
        assert_eq!(both, [read("a: {x: 1}\nb: {x: 1}"), read("c: 1")]);
        assert!(matches!(
            documents("a: 1\n---\nb: {<<: 1}\n"),
            Err((2, YamlError::Merge))
        ));
    }

    #[test]
    fn aliases_of_a_file_repeat_a_bounded_amount_of_values() {
        // A wrong document ends the reading, however many follow it.
        assert!(matches!(
            parse("[]]\n---\na: 1\n"),
            Err(YamlError::Syntax(_))
        ));
        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let below = vec![format!("*a{}", level - 1); 9].join(", ");
            laughs += &format!("a{level}: &a{level} [{below}]\n");
        }
        // One long text that is repeated often passes the library's own limit.
        let long = format!(
            "a: &a {}\nb: [{}]\n",
            "x".repeat(500_000),
            "*a, ".repeat(100)
        );
        let merged = format!(
            "a: &a {{k: {}}}\nb:\n{}",
            "x".repeat(500_000),
            "- {<<: *a}\n".repeat(100)
        );
        for text in [&laughs, &long, &merged] {
            assert_eq!(parse(text), Err(YamlError::Values));
            assert!(matches!(documents(text), Err((1, YamlError::Values))));
        }
        let few = format!(
            "a: &a {}\nb: [*a, *a]\nc: !tag [1, -1, 1.5, true, null]\n",
            "x".repeat(500_000)
        );
        assert!(parse(&few).is_ok());
        assert_eq!(parse(&" ".repeat(LARGEST_FILE + 1)), Err(YamlError::File));
        let syntax = parse("a: [1").unwrap_err().to_string();
        assert!(
            syntax.starts_with("not valid YAML: ") && syntax.contains("line"),
            "{syntax}"
        );
    }
}
