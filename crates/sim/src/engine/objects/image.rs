//! GPU code images: the names of kernels and global variables in PTX, cubin and fat binaries. Nothing else of it is
//! ever interpreted.
//!
//! PTX text, cubin (ELF, machine 190) and fat binaries, wrapped or not. Compressed parts of a fat binary stay closed:
//! an image that has any is taken to contain every kernel it is asked for.

use std::ffi::CStr;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    pub kernels: Vec<Kernel>,
    pub globals: Vec<Global>,
    /// Some of the image could not be read, so any kernel name may be in it.
    pub opaque: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    pub name: String,
    /// `(offset, bytes)` of each parameter; None when the image does not say (cubin).
    pub parameters: Option<Vec<(usize, usize)>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Global {
    pub name: String,
    pub bytes: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum BadImage {
    /// No format the driver knows.
    Format,
    /// Text, but not PTX.
    Ptx,
}

const ELF_MAGIC: &[u8; 4] = b"\x7fELF";

/// `sizeof(Elf64_Ehdr)` of elf.h.
const ELF_HEADER: usize = 64;

/// `EM_CUDA` of elf.h.
const MACHINE_CUDA: u16 = 190;

const WRAPPER_MAGIC: u32 = 0x4662_43B1;

const FATBIN_MAGIC: u32 = 0xBA55_ED50;

/// Of fatbinary_section.h and public descriptions of CUDA's fat binaries.
const FATBIN_HEADER: usize = 16;

const KIND_PTX: u16 = 1;

/// Of the same description of CUDA's fat binaries.
const KIND_CUBIN: u16 = 2;

/// Of the same description of CUDA's fat binaries: shorter ones have no size of their own.
const ENTRY_HEADER: usize = 64;

/// Entry flags that say the payload is compressed (LZ4, Zstandard).
const COMPRESSED: u64 = 0x2000 | 0x8000;

impl Image {
    /// Reads the image at `data`; only its own headers tell its length.
    ///
    /// # Safety
    /// `data` points to a whole image of one of the formats, or to a zero-terminated text.
    pub unsafe fn read(data: *const u8) -> Result<Image, BadImage> {
        // SAFETY: the kind of every format, and of the shortest text that is no PTX ("\0"), is known after four bytes at
        // most; the caller vouches for what its kind implies.
        unsafe {
            if starts_with(data, ELF_MAGIC) {
                return Image::from_elf(elf_bytes(data)?);
            }
            if starts_with(data, &WRAPPER_MAGIC.to_le_bytes()) {
                let inner = data.add(8).cast::<*const u8>().read_unaligned();
                return Image::from_fatbin(fatbin_bytes(inner)?);
            }
            if starts_with(data, &FATBIN_MAGIC.to_le_bytes()) {
                return Image::from_fatbin(fatbin_bytes(data)?);
            }
            let text = CStr::from_ptr(data.cast()).to_bytes();
            Image::from_ptx(text)
        }
    }

    /// Reads an image of known length, for instance from a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Image, BadImage> {
        match bytes.get(..4) {
            Some(magic) if magic == ELF_MAGIC => Image::from_elf(bytes),
            Some(magic) if magic == FATBIN_MAGIC.to_le_bytes() => Image::from_fatbin(bytes),
            _ => Image::from_ptx(bytes),
        }
    }

    fn from_ptx(bytes: &[u8]) -> Result<Image, BadImage> {
        let text = std::str::from_utf8(bytes).map_err(|_| BadImage::Format)?;
        if !text.contains(".version") || !text.contains(".target") {
            return Err(if text.is_empty() {
                BadImage::Format
            } else {
                BadImage::Ptx
            });
        }
        let text = without_comments(text);
        let mut image = Image::default();
        let mut rest = text.as_str();
        while let Some(at) = rest.find(".entry") {
            rest = &rest[at + ".entry".len()..];
            let head = &rest[..rest.find(['{', ';']).unwrap_or(rest.len())];
            let name = head
                .split(|c: char| c.is_whitespace() || c == '(')
                .find(|word| !word.is_empty())
                .unwrap_or_default();
            let list = head
                .find('(')
                .and_then(|open| Some(&head[open + 1..open + head[open..].find(')')?]))
                .unwrap_or_default();
            image.kernels.push(Kernel {
                name: name.to_owned(),
                parameters: Some(parameters(list)),
            });
        }
        image.globals = text.split([';', '}', '{']).filter_map(global).collect();
        Ok(image)
    }

    fn from_elf(bytes: &[u8]) -> Result<Image, BadImage> {
        let elf = Elf::new(bytes).ok_or(BadImage::Format)?;
        let mut image = Image::default();
        for section in elf.sections() {
            if let Some(name) = elf.section_name(&section).strip_prefix(".text.") {
                image.kernels.push(Kernel {
                    name: name.to_owned(),
                    parameters: None,
                });
            }
        }
        image.globals = elf.global_variables();
        Ok(image)
    }

    fn from_fatbin(bytes: &[u8]) -> Result<Image, BadImage> {
        if u32_at(bytes, 0) != Some(FATBIN_MAGIC) {
            return Err(BadImage::Format);
        }
        let mut image = Image::default();
        let mut at = FATBIN_HEADER;
        while let (Some(kind), Some(header), Some(payload)) = (
            u16_at(bytes, at),
            u32_at(bytes, at + 4),
            u64_at(bytes, at + 8),
        ) {
            let (header, payload) = (header as usize, payload as usize);
            let Some(content) = bytes.get(at + header..(at + header).saturating_add(payload))
            else {
                break;
            };
            let flags = u64_at(bytes, at + 40).filter(|_| header >= 48).unwrap_or(0);
            if flags & COMPRESSED != 0 {
                image.opaque = true;
            } else {
                let end = content
                    .iter()
                    .position(|byte| *byte == 0)
                    .filter(|_| kind == KIND_PTX)
                    .unwrap_or(content.len());
                let part = Image::from_bytes(&content[..end])?;
                let news = part
                    .kernels
                    .into_iter()
                    .filter(|kernel| image.kernels.iter().all(|known| known.name != kernel.name));
                let news: Vec<Kernel> = news.collect();
                image.kernels.extend(news);
                let known: Vec<String> = image
                    .globals
                    .iter()
                    .map(|global| global.name.clone())
                    .collect();
                image.globals.extend(
                    part.globals
                        .into_iter()
                        .filter(|global| !known.contains(&global.name)),
                );
            }
            at += header + payload;
        }
        if image == Image::default() {
            Err(BadImage::Format)
        } else {
            Ok(image)
        }
    }

    pub fn kernel(&self, name: &str) -> Option<Kernel> {
        let listed = self
            .kernels
            .iter()
            .find(|kernel| kernel.name == name)
            .cloned();
        listed.or_else(|| {
            self.opaque.then(|| Kernel {
                name: name.to_owned(),
                parameters: None,
            })
        })
    }
}

/// A fat binary in the making.
#[derive(Default)]
pub struct Bundle {
    /// Room for the header, then the parts.
    bytes: Vec<u8>,
}

impl Bundle {
    pub fn add_ptx(&mut self, text: &[u8]) {
        self.add(KIND_PTX, 0, text);
    }

    pub fn add_cubin(&mut self, file: &[u8]) {
        self.add(KIND_CUBIN, 0, file);
    }

    /// Adds something in which any kernel may be.
    pub fn add_opaque(&mut self, content: &[u8]) {
        self.add(KIND_CUBIN, COMPRESSED, content);
    }

    /// Adds the parts of another fat binary.
    pub fn add_fatbin(&mut self, file: &[u8]) -> Result<(), BadImage> {
        Image::from_fatbin(file)?;
        self.begin();
        self.bytes.extend(&file[FATBIN_HEADER..]);
        Ok(())
    }

    fn begin(&mut self) {
        if self.bytes.is_empty() {
            self.bytes.resize(FATBIN_HEADER, 0);
        }
    }

    fn add(&mut self, kind: u16, flags: u64, content: &[u8]) {
        self.begin();
        let mut header = [0u8; ENTRY_HEADER];
        header[..2].copy_from_slice(&kind.to_le_bytes());
        header[4..8].copy_from_slice(&(ENTRY_HEADER as u32).to_le_bytes());
        header[8..16].copy_from_slice(&(content.len() as u64).to_le_bytes());
        header[40..48].copy_from_slice(&flags.to_le_bytes());
        self.bytes.extend(header);
        self.bytes.extend(content);
    }

    /// The fat binary as it is now.
    pub fn finish(&mut self) -> &[u8] {
        self.begin();
        let length = (self.bytes.len() - FATBIN_HEADER) as u64;
        self.bytes[..4].copy_from_slice(&FATBIN_MAGIC.to_le_bytes());
        self.bytes[4] = 1;
        self.bytes[6] = FATBIN_HEADER as u8;
        self.bytes[8..16].copy_from_slice(&length.to_le_bytes());
        &self.bytes
    }
}

/// # Safety
/// `data` is readable up to the first byte that differs from `magic`.
unsafe fn starts_with(data: *const u8, magic: &[u8; 4]) -> bool {
    // SAFETY: `all` stops at the first difference, so nothing behind it is read.
    (0..4).all(|at| unsafe { *data.add(at) } == magic[at])
}

/// # Safety
/// `data` points to a whole ELF file.
unsafe fn elf_bytes<'a>(data: *const u8) -> Result<&'a [u8], BadImage> {
    // SAFETY: an ELF file has its header, its section table where the header says, and its sections where the table
    // says.
    unsafe {
        let header = std::slice::from_raw_parts(data, ELF_HEADER);
        let table = Elf::table(header).ok_or(BadImage::Format)?;
        let bytes = std::slice::from_raw_parts(data, table.end());
        let elf = Elf { bytes, table };
        let filled = elf
            .sections()
            .filter(|section| section.kind != Section::NOBITS);
        let end = filled
            .map(|section| section.offset.saturating_add(section.size))
            .max();
        Ok(std::slice::from_raw_parts(
            data,
            end.unwrap_or(0).max(bytes.len()),
        ))
    }
}

/// # Safety
/// `data` points to a whole fat binary, or to anything readable for 16 bytes.
unsafe fn fatbin_bytes<'a>(data: *const u8) -> Result<&'a [u8], BadImage> {
    // SAFETY: the header says how much follows it.
    unsafe {
        let header = std::slice::from_raw_parts(data, FATBIN_HEADER);
        if u32_at(header, 0) != Some(FATBIN_MAGIC) {
            return Err(BadImage::Format);
        }
        let length = u64_at(header, 8).unwrap_or(0) as usize;
        Ok(std::slice::from_raw_parts(data, FATBIN_HEADER + length))
    }
}

/// A 64-bit little-endian ELF file.
struct Elf<'a> {
    bytes: &'a [u8],
    table: SectionTable,
}

#[derive(Clone, Copy)]
struct SectionTable {
    offset: usize,
    count: usize,
    names: usize,
}

impl SectionTable {
    /// `sizeof(Elf64_Shdr)` of elf.h.
    const ENTRY: usize = 64;

    fn end(&self) -> usize {
        self.offset + self.count * Self::ENTRY
    }
}

struct Section {
    name: usize,
    kind: u32,
    offset: usize,
    size: usize,
    link: usize,
}

impl Section {
    /// Kinds of sections of elf.h.
    const SYMTAB: u32 = 2;
    const NOBITS: u32 = 8;
}

impl<'a> Elf<'a> {
    fn table(header: &[u8]) -> Option<SectionTable> {
        let sound = header.get(4) == Some(&2)
            && u16_at(header, 18)? == MACHINE_CUDA
            && u16_at(header, 58)? as usize == SectionTable::ENTRY;
        let offset = usize::try_from(u64_at(header, 40)?).ok()?;
        sound.then_some(SectionTable {
            offset,
            count: u16_at(header, 60)? as usize,
            names: u16_at(header, 62)? as usize,
        })
    }

    fn new(bytes: &'a [u8]) -> Option<Elf<'a>> {
        Some(Elf {
            bytes,
            table: Elf::table(bytes)?,
        })
    }

    fn section(&self, index: usize) -> Option<Section> {
        let at = self.table.offset.checked_add(index * SectionTable::ENTRY)?;
        Some(Section {
            name: u32_at(self.bytes, at)? as usize,
            kind: u32_at(self.bytes, at + 4)?,
            offset: u64_at(self.bytes, at + 24)? as usize,
            size: u64_at(self.bytes, at + 32)? as usize,
            link: u32_at(self.bytes, at + 40)? as usize,
        })
    }

    fn sections(&self) -> impl Iterator<Item = Section> {
        (0..self.table.count).filter_map(|index| self.section(index))
    }

    fn text(&self, table: usize, at: usize) -> &'a str {
        let start = self
            .section(table)
            .and_then(|names| names.offset.checked_add(at));
        let bytes = start
            .and_then(|start| self.bytes.get(start..))
            .unwrap_or_default();
        CStr::from_bytes_until_nul(bytes)
            .ok()
            .and_then(|text| text.to_str().ok())
            .unwrap_or_default()
    }

    fn section_name(&self, section: &Section) -> &'a str {
        self.text(self.table.names, section.name)
    }

    /// Symbols of type OBJECT that lie in `.nv.global*` or `.nv.constant*` sections.
    fn global_variables(&self) -> Vec<Global> {
        /// `sizeof(Elf64_Sym)` of elf.h.
        const SYMBOL: usize = 24;
        const OBJECT: u8 = 1;
        let mut globals = Vec::new();
        for symbols in self
            .sections()
            .filter(|section| section.kind == Section::SYMTAB)
        {
            for at in (symbols.offset..symbols.offset.saturating_add(symbols.size)).step_by(SYMBOL)
            {
                let symbol = (
                    u32_at(self.bytes, at),
                    self.bytes.get(at + 4),
                    u16_at(self.bytes, at + 6),
                    u64_at(self.bytes, at + 16),
                );
                let (Some(name), Some(info), Some(place), Some(bytes)) = symbol else {
                    break;
                };
                let place = self
                    .section(place as usize)
                    .map(|section| self.section_name(&section))
                    .unwrap_or_default();
                if info & 0xf == OBJECT
                    && bytes > 0
                    && (place.starts_with(".nv.global") || place.starts_with(".nv.constant"))
                {
                    globals.push(Global {
                        name: self.text(symbols.link, name as usize).to_owned(),
                        bytes,
                    });
                }
            }
        }
        globals
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(
        bytes.get(at..at.checked_add(2)?)?.try_into().ok()?,
    ))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(
        bytes.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(
        bytes.get(at..at.checked_add(8)?)?.try_into().ok()?,
    ))
}

fn without_comments(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("//").into_iter().chain(rest.find("/*")).min() {
        clean.push_str(&rest[..at]);
        let end = if rest[at..].starts_with("//") {
            rest[at..].find('\n')
        } else {
            rest[at..].find("*/").map(|end| end + 2)
        };
        rest = end.map_or("", |end| &rest[at + end..]);
    }
    clean + rest
}

/// Bytes of a PTX type such as `.u64`, `.f16x2`, `.pred`.
fn type_bytes(name: &str) -> Option<usize> {
    let (digits, factor) = match name.strip_prefix('.')?.strip_suffix("x2") {
        Some(half) => (half, 2),
        None => (&name[1..], 1),
    };
    let bits: usize = digits
        .trim_start_matches(['u', 's', 'b', 'f'])
        .parse()
        .ok()
        .filter(|_| digits.starts_with(['u', 's', 'b', 'f']))?;
    Some(bits / 8 * factor)
}

/// `(type bytes, alignment, name, elements)` of a PTX declaration such as `.param .align 8 .b8 name[16]`.
fn declaration(text: &str) -> Option<(usize, usize, &str, usize)> {
    let mut words = text.split_whitespace();
    let (mut bytes, mut align) = (None, None);
    let mut name = "";
    while let Some(word) = words.next() {
        if word == ".align" {
            align = words.next()?.parse().ok();
        } else if word == ".ptr" {
            // A pointer's attributes: `.param .u64 .ptr .global .align 16 name` says how what it points to is aligned.
            align = Some(bytes?);
        } else if word.starts_with('.') {
            bytes = bytes.or(type_bytes(word));
        } else {
            name = word;
            break;
        }
    }
    let bytes = bytes?;
    let mut dimensions = name.split('[');
    let name = dimensions.next().filter(|name| !name.is_empty())?;
    let elements = dimensions
        .map(|length| length.trim_end_matches(']').parse().unwrap_or(1))
        .product();
    Some((bytes, align.unwrap_or(bytes), name, elements))
}

fn parameters(list: &str) -> Vec<(usize, usize)> {
    let mut end = 0usize;
    let declared = list
        .split(',')
        .filter_map(|text| declaration(text).map(|found| (found, text.contains(".ptr"))));
    declared
        .map(|((bytes, align, _, elements), is_pointer)| {
            let offset = end.next_multiple_of(if is_pointer { bytes } else { align }.max(1));
            end = offset + bytes * elements;
            (offset, bytes * elements)
        })
        .collect()
}

/// A module-level variable: the text before an initialiser, such as `.visible .global .align 4 .b8 table[400]`.
fn global(statement: &str) -> Option<Global> {
    let words: Vec<&str> = statement.split('=').next()?.split_whitespace().collect();
    let space = words
        .iter()
        .position(|word| *word == ".global" || *word == ".const")?;
    let head = words[space..].join(" ");
    let (bytes, _, name, elements) = declaration(&head).filter(|_| !head.contains('('))?;
    Some(Global {
        name: name.to_owned(),
        bytes: (bytes * elements) as u64,
    })
}

#[cfg(test)]
mod tests;
