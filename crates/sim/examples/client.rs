//! A program that calls CUDA and NVML functions by order of its standard input: the hands of the tests in `tests/`.
//!
//! It reaches the driver as programs do, by `dlopen("libcuda.so.1")` and `dlsym`. One order a line, one answer a line:
//!
//! ```text
//! cuMemAlloc_v2 &a 1048576     call; &a is the address of variable a, $a its value, "x" a text; the answer is the result code
//! cuIpcOpenMemHandle_v2 &p 1 0 0 0 0 %h   %h is variable h by value: its 64 bytes, which the C calling convention puts behind six others
//! fork cuInit 0 ; cuInit 0     calls in a fork child; the answer is the last one's
//! thread cuInit 0 ; cuInit 0   calls in a thread of their own; likewise
//! bytes a 0100ff               gives variable a a content (hexadecimal); get a answers it; $a is its first eight bytes as a number
//! where a                      the address of variable a as a number
//! address &a abs               variable a becomes the address of a function
//! again 1000 cuLaunchKernel …  the call so often, until it fails
//! ```

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::io::{BufRead, Write};

/// Integer arguments of the C calling convention: a function takes those it has and never sees the others.
type Function = unsafe extern "C" fn(
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
    u64,
) -> u32;

/// Room for any variable of the tests' scripts, and so enough.
const VARIABLE_BYTES: usize = 1024;

#[derive(Default)]
struct Client {
    functions: HashMap<String, Option<Function>>,
    variables: HashMap<String, Box<[u8; VARIABLE_BYTES]>>,
    texts: Vec<CString>,
}

impl Client {
    fn variable(&mut self, name: &str) -> &mut [u8; VARIABLE_BYTES] {
        self.variables
            .entry(name.to_owned())
            .or_insert_with(|| Box::new([0; VARIABLE_BYTES]))
    }

    fn function(&mut self, name: &str) -> Option<Function> {
        *self.functions.entry(name.to_owned()).or_insert_with(|| {
            let library = if name.starts_with("nvml") {
                c"libnvidia-ml.so.1"
            } else {
                c"libcuda.so.1"
            };
            let symbol = CString::new(name).ok()?;
            // SAFETY: valid names; the libraries stay loaded.
            let address = unsafe {
                libc::dlsym(
                    libc::dlopen(library.as_ptr(), libc::RTLD_NOW),
                    symbol.as_ptr(),
                )
            };
            // SAFETY: the tests name functions of integer and pointer parameters that answer an int.
            (!address.is_null())
                .then(|| unsafe { std::mem::transmute::<*mut c_void, Function>(address) })
        })
    }

    fn argument(&mut self, word: &str) -> u64 {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text
                .parse::<i64>()
                .map(|number| number as u64)
                .or_else(|_| text.parse()),
        };
        match word.split_at(1) {
            ("&", name) => self.variable(name).as_ptr() as u64,
            ("$", name) => {
                u64::from_ne_bytes(self.variable(name)[..8].try_into().expect("eight bytes"))
            }
            ("\"", text) => {
                let text =
                    CString::new(text.trim_end_matches('"')).expect("a line holds no zero byte");
                self.texts.push(text);
                self.texts[self.texts.len() - 1].as_ptr() as u64
            }
            _ => number(word).expect("a number"),
        }
    }

    fn call(&mut self, words: &[&str]) -> String {
        let Some(function) = self.function(words[0]) else {
            return "missing".into();
        };
        let mut given = Vec::new();
        for word in &words[1..] {
            match word.strip_prefix('%') {
                Some(name) => {
                    let bytes = self.variable(name)[..64].chunks(8);
                    let words = bytes.map(|word| u64::from_ne_bytes(word.try_into().expect("8")));
                    given.extend(words);
                }
                None => given.push(self.argument(word)),
            }
        }
        let mut arguments = [0; 14];
        arguments[..given.len()].copy_from_slice(&given);
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = arguments;
        // SAFETY: the tests pass what the function asks for.
        unsafe { function(a, b, c, d, e, f, g, h, i, j, k, l, m, n) }.to_string()
    }

    fn call_in_fork(&mut self, words: &[&str]) -> String {
        let mut ends = [0; 2];
        // SAFETY: plain pipe, fork, write, wait; the child does nothing else.
        unsafe {
            libc::pipe(ends.as_mut_ptr());
            let child = libc::fork();
            if child == 0 {
                let calls = words.split(|word| *word == ";");
                let answer = calls.map(|call| self.call(call)).last().unwrap_or_default();
                libc::write(ends[1], answer.as_ptr().cast(), answer.len());
                libc::_exit(0);
            }
            libc::close(ends[1]);
            libc::waitpid(child, std::ptr::null_mut(), 0);
            let mut answer = [0u8; 32];
            let length = libc::read(ends[0], answer.as_mut_ptr().cast(), answer.len());
            libc::close(ends[0]);
            String::from_utf8_lossy(&answer[..usize::try_from(length).unwrap_or(0)]).into_owned()
        }
    }

    fn call_in_thread(&mut self, words: &[&str]) -> String {
        let calls = words.split(|word| *word == ";");
        let all = || calls.map(|call| self.call(call)).last();
        let answer = std::thread::scope(|scope| scope.spawn(all).join());
        answer.expect("calls do not panic").unwrap_or_default()
    }

    fn obey(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["fork", rest @ ..] => self.call_in_fork(rest),
            ["thread", rest @ ..] => self.call_in_thread(rest),
            ["bytes", name, hex] => {
                let digits: Vec<u8> = hex
                    .bytes()
                    .map(|digit| (digit as char).to_digit(16).expect("hexadecimal") as u8)
                    .collect();
                let variable = self.variable(name);
                digits
                    .chunks(2)
                    .zip(variable.iter_mut())
                    .for_each(|(pair, byte)| *byte = pair[0] << 4 | pair[1]);
                "0".into()
            }
            ["where", name] => (self.variable(name).as_ptr() as u64).to_string(),
            ["address", place, name] => {
                let Some(function) = self.function(name) else {
                    return "missing".into();
                };
                let address = (function as usize as u64).to_ne_bytes();
                self.variable(&place[1..])[..8].copy_from_slice(&address);
                "0".into()
            }
            ["get", name] => self
                .variable(name)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
            ["again", count, rest @ ..] => {
                let count = count.parse().expect("a number");
                let answers = (0..count).map(|_: u64| self.call(rest));
                answers
                    .into_iter()
                    .find(|answer| answer != "0")
                    .unwrap_or_else(|| "0".into())
            }
            call => self.call(call),
        }
    }
}

fn main() {
    let mut client = Client::default();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let answer = client.obey(&line);
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{answer}")
            .and_then(|()| out.flush())
            .is_err()
        {
            return;
        }
    }
}
