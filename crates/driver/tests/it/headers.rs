//! Holds every declaration of `divvy_driver::sys` against NVIDIA's own headers, by having a C compiler check them.
//!
//! `DIVVY_CUDA_INCLUDE` names the folder with `cuda.h`, `cudaTypedefs.h` and `nvml.h` (the `include` folder of the PyPI
//! packages nvidia-cuda-runtime and nvidia-nvml-dev, 13.5). They are not ours to ship: without them these tests say so on
//! stderr and check nothing. Our test command always sets the variable.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use divvy_driver::sys::{Enum, Signature, Struct, cuda, nvml, symbols};
use divvy_testkit::Bounded as _;

/// Asks both headers for every revision of every function under its exported name.
const PRELUDE: &str = "\
#define __CUDA_API_VERSION_INTERNAL
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <stddef.h>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <nvml.h>
";

/// Exported by libnvidia-ml, declared in no header.
const UNDOCUMENTED: &str = "nvmlInternalGetExportTable";

fn include() -> Option<PathBuf> {
    let include = std::env::var_os("DIVVY_CUDA_INCLUDE").map(PathBuf::from);
    if include.is_none() {
        eprintln!("skipped: DIVVY_CUDA_INCLUDE does not name a folder with NVIDIA's headers");
    }
    include
}

/// Gives the compiler the headers and what follows them.
fn cc(include: &PathBuf, mode: &[&str], source: &str) -> Output {
    let mut cc = Command::new("cc")
        .args(mode)
        .args(["-std=gnu11", "-w", "-x", "c", "-", "-isystem"])
        .arg(include)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a C compiler named cc");
    let mut stdin = cc.stdin.take().expect("stdin is piped");
    std::io::Write::write_all(&mut stdin, format!("{PRELUDE}{source}").as_bytes())
        .expect("the compiler reads its input");
    drop(stdin);
    cc.output_bounded().expect("the compiler ends")
}

/// What the compiler says against these assertions; nothing when all of them hold.
fn complaints(include: &PathBuf, assertions: &str) -> String {
    let output = cc(include, &["-fsyntax-only"], assertions);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    said
}

fn assert_headers_agree(assertions: &str) {
    if let Some(include) = include() {
        let complaints = complaints(&include, assertions);
        assert!(complaints.is_empty(), "{complaints}");
    }
}

/// `*mut *const c_char` is `char const * *`.
fn c_type(rust: &str) -> String {
    if let Some(target) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type(target));
    }
    if let Some(target) = rust.strip_prefix("*const ") {
        return format!("{} const *", c_type(target));
    }
    match rust {
        "c_char" => "char",
        "c_uchar" => "unsigned char",
        "c_ushort" => "unsigned short",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_ulong" => "unsigned long",
        "c_ulonglong" => "unsigned long long",
        "c_void" => "void",
        "f32" => "float",
        "usize" => "size_t",
        named => named,
    }
    .to_owned()
}

fn signature(function: &Signature) -> String {
    let parameters: Vec<String> = function.parameters.iter().map(|t| c_type(t)).collect();
    let parameters = if parameters.is_empty() {
        "void".to_owned()
    } else {
        parameters.join(", ")
    };
    let (name, result) = (function.name, c_type(function.result));
    format!(
        "_Static_assert(__builtin_types_compatible_p(__typeof__({name}), {result}({parameters})), \"{name}\");\n"
    )
}

fn structure(layout: &Struct) -> String {
    let (name, size) = (layout.name, layout.size);
    let mut assertions = format!("_Static_assert(sizeof({name}) == {size}, \"size\");\n");
    for (field, offset, size) in layout.fields {
        let field = field.trim_end_matches('_');
        let _ = writeln!(
            assertions,
            "_Static_assert(offsetof({name}, {field}) == {offset} && sizeof((({name} *)0)->{field}) == {size}, \"{field}\");",
        );
    }
    assertions
}

fn enumeration(values: &Enum) -> String {
    let mut assertions = format!("_Static_assert(sizeof({}) == 4, \"size\");\n", values.name);
    for (name, value) in values.values {
        let name = name.trim_end_matches('\0');
        let _ = writeln!(assertions, "_Static_assert({name} == {value}, \"{name}\");");
    }
    assertions
}

#[test]
fn every_signature_is_the_headers() {
    let functions = cuda::pfn::SIGNATURES.iter().chain(nvml::pfn::SIGNATURES);
    let documented = functions.filter(|f| f.name != UNDOCUMENTED);
    assert_headers_agree(&documented.map(signature).collect::<String>());
}

#[test]
fn every_structure_is_laid_out_as_the_headers_say() {
    let structures = cuda::STRUCTS.iter().chain(nvml::STRUCTS);
    assert_headers_agree(&structures.map(structure).collect::<String>());
}

#[test]
fn every_constant_has_the_headers_value() {
    let mut assertions: String = cuda::ENUMS
        .iter()
        .chain(nvml::ENUMS)
        .map(enumeration)
        .collect();
    for (name, value) in cuda::DEFINES.iter().chain(nvml::DEFINES) {
        let _ = writeln!(assertions, "_Static_assert({name} == {value}, \"{name}\");");
    }
    assertions.push_str(
        "_Static_assert(NVML_VALUE_NOT_AVAILABLE == -1, \"all ones\");
         _Static_assert((size_t)CU_STREAM_LEGACY == 1 && (size_t)CU_STREAM_PER_THREAD == 2, \"streams\");\n",
    );
    assert_headers_agree(&assertions);
}

#[test]
fn every_exported_symbol_is_declared() {
    let symbols = symbols::CUDA.iter().chain(symbols::NVML);
    let declared = symbols.filter(|symbol| **symbol != UNDOCUMENTED);
    assert_headers_agree(
        &declared
            .map(|symbol| format!("__typeof__({symbol}) {symbol};\n"))
            .collect::<String>(),
    );
}

/// `CUresult NAME (` and `nvmlReturn_t NAME (`: every function but one is declared so.
#[test]
fn every_function_of_the_headers_is_in_the_tables() {
    let Some(include) = include() else { return };
    let output = cc(&include, &["-E", "-P"], "");
    let text = String::from_utf8(output.stdout).expect("headers are text");
    let words: Vec<&str> = text
        .split_inclusive(|c: char| !c.is_alphanumeric() && c != '_')
        .flat_map(|word| {
            let (name, rest) = word.split_at(
                word.trim_end_matches(|c: char| !c.is_alphanumeric() && c != '_')
                    .len(),
            );
            [name, rest]
        })
        .filter(|word| !word.trim().is_empty())
        .collect();
    let declared: BTreeSet<&str> = words
        .windows(3)
        .filter(|words| matches!(words[0], "CUresult" | "nvmlReturn_t") && words[2] == "(")
        .map(|words| words[1])
        .collect();
    assert!(declared.contains("cuMemAlloc_v2") && declared.len() > 1000);
    let known = |name: &&&str| symbols::CUDA.contains(name) || symbols::NVML.contains(name);
    let unknown: Vec<_> = declared.iter().filter(|name| !known(name)).collect();
    assert!(unknown.is_empty(), "run `cargo xtask symbols`: {unknown:?}");
}

/// The pairing of versions with symbols is a rule, not in the headers; but a wrong pair is nearly always of two types.
#[test]
fn every_answer_of_the_address_lookup_has_the_type_that_its_version_says() {
    let mut assertions = String::new();
    for (name, version, per_thread, symbol) in symbols::proc_addresses() {
        let suffix = if per_thread {
            &symbol[symbol.len() - "_ptsz".len()..]
        } else {
            ""
        };
        let _ = writeln!(
            assertions,
            "_Static_assert(__builtin_types_compatible_p(__typeof__(&{symbol}), PFN_{name}_v{version}{suffix}), \"{symbol}\");",
        );
    }
    assert_headers_agree(&assertions);
}

#[test]
fn a_declaration_unlike_the_headers_is_noticed() {
    let Some(include) = include() else { return };
    let wrong = [
        signature(&Signature {
            name: "cuMemAlloc_v2",
            parameters: &["*mut CUdeviceptr", "c_uint"],
            result: "CUresult",
        }),
        structure(&Struct {
            name: "nvmlMemory_t",
            size: 24,
            fields: &[("used", 8, 8)],
        }),
        enumeration(&Enum {
            name: "CUresult",
            values: &[("CUDA_ERROR_OUT_OF_MEMORY\0", 3)],
        }),
    ];
    for assertion in wrong {
        assert!(
            complaints(&include, &assertion).contains("static assertion failed"),
            "{assertion}"
        );
    }
}
