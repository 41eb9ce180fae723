use super::*;

const PTX: &str = "
// .entry in_a_comment ()
.version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .b8 table[400];
.const .u32 limit = 7;
/* .entry in_another ( */
.visible .entry add(
    .param .u64 add_a, .param .u64 .ptr .global .align 16 add_b,
    .param .u32 add_n, .param .align 8 .b8 add_s[24]
)
{
    .reg .b64 %r<4>;
    ld.global.u32 %r1, [%r2];
    ret;
}
.entry plain { ret; }
";

#[test]
fn ptx_tells_kernels_parameters_and_variables() {
    let image = Image::from_bytes(PTX.as_bytes()).expect("PTX");
    let names: Vec<&str> = image
        .kernels
        .iter()
        .map(|kernel| kernel.name.as_str())
        .collect();
    assert_eq!(names, ["add", "plain"]);
    assert_eq!(
        image.kernels[0].parameters.as_deref(),
        Some(&[(0, 8), (8, 8), (16, 4), (24, 24)][..])
    );
    assert_eq!(image.kernels[1].parameters.as_deref(), Some(&[][..]));
    assert_eq!(
        image.globals,
        [
            Global {
                name: "table".into(),
                bytes: 400
            },
            Global {
                name: "limit".into(),
                bytes: 4
            }
        ]
    );
}

/// A cubin with one kernel section, made as the ELF specification lays one out.
fn cubin(kernel: &str) -> Vec<u8> {
    let names = format!("\0.shstrtab\0.text.{kernel}\0");
    let mut file = vec![0u8; ELF_HEADER];
    file[..4].copy_from_slice(ELF_MAGIC);
    file[4] = 2;
    file[18..20].copy_from_slice(&MACHINE_CUDA.to_le_bytes());
    file[40..48].copy_from_slice(&(ELF_HEADER as u64).to_le_bytes());
    for (at, value) in [(58, 64u16), (60, 3), (62, 1)] {
        file[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    let strings = ELF_HEADER + 3 * SectionTable::ENTRY;
    for (name, kind, size) in [(0u32, 0u32, 0usize), (1, 3, names.len()), (11, 1, 0)] {
        let mut section = [0u8; SectionTable::ENTRY];
        section[..4].copy_from_slice(&name.to_le_bytes());
        section[4..8].copy_from_slice(&kind.to_le_bytes());
        section[24..32].copy_from_slice(&(strings as u64).to_le_bytes());
        section[32..40].copy_from_slice(&(size as u64).to_le_bytes());
        file.extend(section);
    }
    file.extend(names.bytes());
    file
}

#[test]
fn a_cubin_tells_its_kernels_through_a_bare_pointer() {
    let file = cubin("_Z3addPf");
    // SAFETY: a whole ELF file.
    let image = unsafe { Image::read(file.as_ptr()) }.expect("cubin");
    assert_eq!(
        image.kernel("_Z3addPf").map(|kernel| kernel.parameters),
        Some(None)
    );
    assert_eq!(image.kernel("other"), None);
}

#[test]
fn a_fat_binary_tells_what_its_parts_tell() {
    let cubin = cubin("from_cubin");
    let mut inner = Bundle::default();
    inner.add_cubin(&cubin);
    let mut bundle = Bundle::default();
    bundle.add_ptx(PTX.as_bytes());
    bundle.add_fatbin(inner.finish()).expect("a fat binary");
    let file = bundle.finish();
    // SAFETY: a whole fat binary.
    let image = unsafe { Image::read(file.as_ptr()) }.expect("fat binary");
    assert!(
        image.kernel("from_cubin").is_some()
            && image.kernel("add").is_some()
            && image.kernel("other").is_none()
    );

    let mut wrapper = WRAPPER_MAGIC.to_le_bytes().to_vec();
    wrapper.extend([1, 0, 0, 0]);
    wrapper.extend((file.as_ptr() as u64).to_le_bytes());
    // SAFETY: a wrapper around the fat binary above.
    assert_eq!(unsafe { Image::read(wrapper.as_ptr()) }, Ok(image));
}

#[test]
fn a_compressed_part_may_hold_any_kernel() {
    let mut bundle = Bundle::default();
    bundle.add_opaque(&[1, 2, 3]);
    let image = Image::from_bytes(bundle.finish()).expect("fat binary");
    assert!(image.kernel("anything").is_some());
}

#[test]
fn what_is_no_image_is_refused() {
    assert_eq!(Image::from_bytes(b"hello"), Err(BadImage::Ptx));
    assert_eq!(Image::from_bytes(b""), Err(BadImage::Format));
    assert_eq!(Image::from_bytes(b"\x7fELF"), Err(BadImage::Format));
    assert_eq!(Image::from_bytes(&[0xff, 0xfe, 0]), Err(BadImage::Format));
    assert_eq!(
        Image::from_bytes(Bundle::default().finish()),
        Err(BadImage::Format)
    );
    let mut cut = cubin("k");
    cut.truncate(ELF_HEADER + 10);
    assert_eq!(
        Image::from_bytes(&cut).map(|image| image.kernels),
        Ok(vec![])
    );
}
