//! A trained policy as bytes: a version, the sizes, the values, and a checksum.
//!
//! ```text
//!  "divvy-table" │ version u32 │ header │ models │ scarce shapes │ values │ checksum of all before
//! ```
//! Integers and floats are little-endian. The reader checks every size before it allocates, so a broken file costs
//! nothing.

use divvy_core::{Bytes, Share};

use super::cells::{CPU, FREE, SPARE};
use super::scarce::{MOST_SCARCE, Scarce};
use super::state::Weights;
use super::table::Table;
use super::{Form, Learned};
use crate::node::{ModelSet, Shape, share};

const MAGIC: &[u8] = b"divvy-table";
/// A change of the format takes the next number, so that an old program refuses the file.
const VERSION: u32 = 2;

/// The size of the largest file: 64 models, two axes. So a larger one is damaged.
pub const MOST_BYTES: usize = 4 << 20;

/// Characters of a model's name at most. Longer than the product names of NVIDIA's GPUs.
const MOST_NAME: usize = 128;

/// Why bytes are no trained policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error(
        "not a table of the learned policy: it does not begin with {:?}",
        String::from_utf8_lossy(MAGIC)
    )]
    NotATable,
    #[error("the table has version {found}; this program reads version {VERSION}")]
    Version { found: u32 },
    #[error("the table has {bytes} bytes: at most {MOST_BYTES}")]
    TooLarge { bytes: usize },
    #[error("the table ends after {bytes} bytes, before its {part}")]
    Short { bytes: usize, part: &'static str },
    #[error("the table's checksum is {found:016x}, its bytes have {computed:016x}")]
    Checksum { found: u64, computed: u64 },
    #[error("the table's {part} is {value}, which is not possible")]
    Value { part: &'static str, value: String },
}

impl Learned {
    /// The policy as bytes, for [`Learned::from_bytes`]. Equal policies give equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let mut put = |part: &[u8]| bytes.extend_from_slice(part);
        put(&VERSION.to_le_bytes());
        put(&[match self.form {
            Form::Fill => 0,
            Form::Departures => 1,
        }]);
        put(&self.requests.to_le_bytes());
        put(&self.mean_milli.to_le_bytes());
        put(&self.weights.price.to_le_bytes());
        put(&self.weights.spread.to_le_bytes());
        put(&[u8::from(self.table.two_axes)]);
        put(&number(self.table.models));
        put(&number(self.models.len()));
        for name in &self.models {
            put(&number(name.len()));
            put(name.as_bytes());
        }
        put(&number(self.scarce.len()));
        for scarce in &self.scarce {
            let shape = &scarce.shape;
            put(&shape.cpu_milli.to_le_bytes());
            put(&shape.memory.whole_mib().to_le_bytes());
            put(&shape.gpus.to_le_bytes());
            let thousandths = shape.share.map_or(0, |share| share.thousandths());
            put(&u32::from(thousandths).to_le_bytes());
            put(&shape.gpu_memory.map_or(0, Bytes::whole_mib).to_le_bytes());
            put(&shape.models.bits().to_le_bytes());
            put(&scarce.gpu_milli.to_le_bytes());
            put(&scarce.part.to_le_bytes());
        }
        for value in &self.table.values {
            put(&value.to_le_bytes());
        }
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The policy that [`Learned::to_bytes`] wrote.
    ///
    /// # Errors
    /// The bytes are not a table, of another version, cut off, changed, or hold a value that no training gives.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TableError> {
        if bytes.len() > MOST_BYTES {
            return Err(TableError::TooLarge { bytes: bytes.len() });
        }
        let after_magic = bytes.strip_prefix(MAGIC).ok_or(TableError::NotATable)?;
        let mut reader = Reader {
            left: after_magic,
            bytes: bytes.len(),
        };
        let found = reader.u32("version")?;
        if found != VERSION {
            return Err(TableError::Version { found });
        }
        let body = reader.checked(bytes)?;
        Reader {
            left: body,
            bytes: bytes.len(),
        }
        .policy()
    }
}

/// A length or count, as four bytes.
fn number(value: usize) -> [u8; 4] {
    u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes()
}

/// FNV-1a, 64 bits: it finds damage, not malice.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

struct Reader<'a> {
    left: &'a [u8],
    /// All bytes of the file, for errors.
    bytes: usize,
}

impl<'a> Reader<'a> {
    /// What lies between here and the checksum, which must be right.
    fn checked(&self, all: &'a [u8]) -> Result<&'a [u8], TableError> {
        let cut_off = TableError::Short {
            bytes: self.bytes,
            part: "checksum",
        };
        let (body, last) = self.left.split_last_chunk::<8>().ok_or(cut_off)?;
        let found = u64::from_le_bytes(*last);
        let computed = checksum(&all[..all.len() - last.len()]);
        if found != computed {
            return Err(TableError::Checksum { found, computed });
        }
        Ok(body)
    }

    fn take(&mut self, length: usize, part: &'static str) -> Result<&'a [u8], TableError> {
        let (taken, left) = self
            .left
            .split_at_checked(length)
            .ok_or(TableError::Short {
                bytes: self.bytes,
                part,
            })?;
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, part: &'static str) -> Result<[u8; N], TableError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, part)?);
        Ok(array)
    }

    fn u32(&mut self, part: &'static str) -> Result<u32, TableError> {
        self.array(part).map(u32::from_le_bytes)
    }

    fn u64(&mut self, part: &'static str) -> Result<u64, TableError> {
        self.array(part).map(u64::from_le_bytes)
    }

    /// A finite number that is not negative.
    fn f64(&mut self, part: &'static str) -> Result<f64, TableError> {
        let value = f64::from_le_bytes(self.array(part)?);
        possible(value.is_finite() && value >= 0.0, part, value)?;
        Ok(value)
    }

    fn f32(&mut self, part: &'static str) -> Result<f32, TableError> {
        let value = f32::from_le_bytes(self.array(part)?);
        possible(value.is_finite() && value >= 0.0, part, value)?;
        Ok(value)
    }

    /// A count of at most so many.
    fn count(&mut self, most: usize, part: &'static str) -> Result<usize, TableError> {
        let value = self.u32(part)?;
        let count = usize::try_from(value).unwrap_or(usize::MAX);
        possible(count <= most, part, value)?;
        Ok(count)
    }

    fn policy(mut self) -> Result<Learned, TableError> {
        let form = match self.array("form")? {
            [0] => Form::Fill,
            [1] => Form::Departures,
            [value] => return Err(impossible("form", value)),
        };
        let requests = self.u64("number of requests")?;
        let mean_milli = self.f64("mean request")?;
        possible(mean_milli >= 1.0, "mean request", mean_milli)?;
        let weights = Weights {
            price: self.f32("weight of prices")?,
            spread: self.f32("weight of spread")?,
        };
        let [two_axes] = self.array("number of axes")?;
        possible(two_axes <= 1, "number of axes", two_axes)?;
        let models = self.count(ModelSet::MOST, "number of models")?;
        let names = self.count(models, "number of names")?;
        let names: Result<Vec<String>, TableError> = (0..names).map(|_| self.name()).collect();
        let scarce = self.count(MOST_SCARCE, "number of scarce shapes")?;
        let scarce: Result<Vec<Scarce>, TableError> = (0..scarce).map(|_| self.scarce()).collect();
        let spares = if two_axes == 1 { SPARE } else { 1 };
        let cells = (models + 1) * spares * CPU * FREE;
        let values: Result<Vec<f32>, TableError> = (0..cells).map(|_| self.f32("values")).collect();
        let policy = Learned {
            form,
            weights,
            requests,
            mean_milli,
            models: names?,
            scarce: scarce?,
            table: Table {
                models,
                two_axes: two_axes == 1,
                values: values?,
            },
            scores: Default::default(),
        };
        possible(self.left.is_empty(), "length", self.bytes)?;
        Ok(policy)
    }

    fn name(&mut self) -> Result<String, TableError> {
        let length = self.count(MOST_NAME, "length of a name")?;
        let name = self.take(length, "names")?;
        let Ok(name) = std::str::from_utf8(name) else {
            return Err(impossible("name of a model", String::from_utf8_lossy(name)));
        };
        Ok(name.to_owned())
    }

    /// Thousandths; 0 stands for none.
    fn share(&mut self, part: &'static str) -> Result<Option<Share>, TableError> {
        let thousandths = self.u32(part)?;
        let share = share(thousandths.into());
        possible(share.is_some() || thousandths == 0, part, thousandths)?;
        Ok(share)
    }

    fn scarce(&mut self) -> Result<Scarce, TableError> {
        let part = "scarce shapes";
        let shape = Shape {
            cpu_milli: self.u64(part)?,
            memory: Bytes::mib(self.u64(part)?),
            gpus: self.u32(part)?,
            share: self.share(part)?,
            gpu_memory: Some(self.u64(part)?).filter(|mib| *mib > 0).map(Bytes::mib),
            models: ModelSet::from_bits(self.u64(part)?),
        };
        Ok(Scarce {
            shape,
            gpu_milli: self.u64(part)?,
            part: self.f64(part)?,
        })
    }
}

fn possible(is: bool, part: &'static str, value: impl ToString) -> Result<(), TableError> {
    is.then_some(()).ok_or_else(|| impossible(part, value))
}

fn impossible(part: &'static str, value: impl ToString) -> TableError {
    let value = value.to_string();
    TableError::Value { part, value }
}
