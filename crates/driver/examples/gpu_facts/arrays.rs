//! What arrays take, by shape and format, and whether the driver says so beforehand.

use divvy_driver::sys::cuda::*;
use serde_json::{Value, json};

use crate::Answer;
use crate::gpu::{Failure, Gpu, cu, grew};

/// Format, bytes of one of its channels, channels.
const FORMATS: [(&str, CUarray_format, usize, u32); 5] = [
    ("uint8 x1", CUarray_format::UNSIGNED_INT8, 1, 1),
    ("uint8 x4", CUarray_format::UNSIGNED_INT8, 1, 4),
    ("half x2", CUarray_format::HALF, 2, 2),
    ("float x1", CUarray_format::FLOAT, 4, 1),
    ("float x4", CUarray_format::FLOAT, 4, 4),
];

/// Width, height, depth in elements; 0 where there is no such dimension.
const SHAPES: [(usize, usize, usize); 7] = [
    (1000, 0, 0),
    (100_000, 0, 0),
    (100, 100, 0),
    (1000, 1000, 0),
    (4096, 4096, 0),
    (4097, 4097, 0),
    (200, 200, 200),
];

/// Levels of the mipmapped arrays that are tried for the two-dimensional shapes. A mipmap of 64 by 64 elements has
/// seven; five are enough to see where small levels are padded.
const LEVELS: u32 = 5;

pub fn sizes() -> Answer {
    let gpu = Gpu::with_context()?;
    let mut rows = Vec::new();
    for (name, format, bytes, channels) in FORMATS {
        for shape in SHAPES {
            let described = descriptor(shape, format, channels);
            let elements = shape.0 * shape.1.max(1) * shape.2.max(1);
            let of_elements = elements * bytes * channels as usize;
            let mut row =
                one(&gpu, &described).unwrap_or_else(|error| json!({"error": error.to_string()}));
            row["format"] = name.into();
            row["shape"] = json!([shape.0, shape.1, shape.2]);
            row["bytes_of_elements"] = of_elements.into();
            rows.push(row);
            if shape.1 > 0 && shape.2 == 0 {
                let mut row = mipmapped(&gpu, &described)
                    .unwrap_or_else(|error| json!({"error": error.to_string()}));
                row["format"] = format!("{name}, {LEVELS} levels").into();
                row["shape"] = json!([shape.0, shape.1, shape.2]);
                row["bytes_of_elements"] = of_elements.into();
                rows.push(row);
            }
        }
    }
    Ok(json!({ "arrays": rows }))
}

fn descriptor(
    (width, height, depth): (usize, usize, usize),
    format: CUarray_format,
    channels: u32,
) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: height,
        Depth: depth,
        Format: format,
        NumChannels: channels,
        Flags: 0,
    }
}

/// What one array takes, beside what its twin without memory says it would (a twin is asked for with deferred mapping).
fn one(gpu: &Gpu, described: &CUDA_ARRAY3D_DESCRIPTOR) -> Answer {
    let said = twin(gpu, described);
    let (before, free_before) = (gpu.used()?, gpu.free()?);
    let mut array = std::ptr::null_mut();
    cu!(gpu, cuArray3DCreate_v2(&raw mut array, described))?;
    let (after, free_after) = (gpu.used()?, gpu.free()?);
    cu!(gpu, cuArrayDestroy(array))?;
    let mut row = json!({
        "took": grew(before, after),
        "took_by_cuda": free_before - free_after,
        "left": grew(before, gpu.used()?),
    });
    match said {
        Ok((size, alignment)) => row["twin"] = json!({"size": size, "alignment": alignment}),
        Err(error) => row["twin"] = Value::from(error.to_string()),
    }
    Ok(row)
}

fn twin(gpu: &Gpu, described: &CUDA_ARRAY3D_DESCRIPTOR) -> Result<(usize, usize), Failure> {
    let deferred = CUDA_ARRAY3D_DESCRIPTOR {
        Flags: CUDA_ARRAY3D_DEFERRED_MAPPING,
        ..*described
    };
    let mut array = std::ptr::null_mut();
    cu!(gpu, cuArray3DCreate_v2(&raw mut array, &raw const deferred))?;
    let mut needs = CUDA_ARRAY_MEMORY_REQUIREMENTS::default();
    let asked = cu!(
        gpu,
        cuArrayGetMemoryRequirements(&raw mut needs, array, gpu.device)
    );
    cu!(gpu, cuArrayDestroy(array))?;
    asked.map(|()| (needs.size, needs.alignment))
}

fn mipmapped(gpu: &Gpu, described: &CUDA_ARRAY3D_DESCRIPTOR) -> Answer {
    let (before, free_before) = (gpu.used()?, gpu.free()?);
    let mut array = std::ptr::null_mut();
    cu!(
        gpu,
        cuMipmappedArrayCreate(&raw mut array, described, LEVELS)
    )?;
    let (after, free_after) = (gpu.used()?, gpu.free()?);
    cu!(gpu, cuMipmappedArrayDestroy(array))?;
    Ok(json!({
        "took": grew(before, after),
        "took_by_cuda": free_before - free_after,
        "left": grew(before, gpu.used()?),
    }))
}
