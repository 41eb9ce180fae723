//! Modules, launches, results of the kernels that are carried out, streams and events.

use crate::machine::{Client, Machine};
use divvy_driver::sys::cuda::CUDA_LAUNCH_PARAMS;

pub const PTX: &str = include_str!("kernels.ptx");

pub fn load(client: &mut Client, machine: &Machine) {
    let path = machine.path("kernels.ptx");
    std::fs::write(&path, PTX).expect("written");
    client.ok(&[&format!("cuModuleLoad &module \"{}\"", path.display())]);
}

/// `kernelParams`: the addresses of the named variables.
pub fn parameters(client: &mut Client, names: &[&str]) {
    let addresses: Vec<u64> = names.iter().map(|name| client.address(name)).collect();
    let hex: String = addresses
        .iter()
        .flat_map(|address| address.to_ne_bytes())
        .map(|byte| format!("{byte:02x}"))
        .collect();
    client.ok(&[&format!("bytes parameters {hex}")]);
}

#[test]
fn known_kernels_compute() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    load(&mut client, &machine);
    client.ok(&[
        "cuModuleGetFunction &add $module \"sim_vector_add_f32\"",
        "cuModuleGetFunction &fill $module \"sim_fill_u32\"",
    ]);
    client.set("a", [1.5f32, 2.0, -3.0, 4.0]);
    client.set("b", [0.5f32, 1.0, 1.0, 0.25]);
    client.set("count", 4u32);
    for name in ["x", "y", "z"] {
        client.ok(&[&format!("cuMemAlloc_v2 &{name} 16")]);
    }
    client.ok(&["cuMemcpyHtoD_v2 $x &a 16", "cuMemcpyHtoD_v2 $y &b 16"]);
    parameters(&mut client, &["x", "y", "z", "count"]);
    client.ok(&[
        "cuLaunchKernel $add 1 1 1 32 1 1 0 0 &parameters 0",
        "cuMemcpyDtoH_v2 &sum $z 16",
    ]);
    let sum: Vec<f32> = client.bytes("sum")[..16]
        .chunks(4)
        .map(|bytes| f32::from_ne_bytes(bytes.try_into().expect("four")))
        .collect();
    assert_eq!(sum, [2.0, 3.0, -2.0, 4.25]);

    client.set("value", 77u32);
    parameters(&mut client, &["z", "value", "count"]);
    client.ok(&[
        "cuLaunchKernel $fill 1 1 1 2 1 1 0 0 &parameters 0",
        "cuMemcpyDtoH_v2 &filled $z 16",
    ]);
    assert_eq!(
        client.value("filled"),
        77 << 32 | 77,
        "two threads fill two"
    );
    assert_ne!(client.bytes("filled")[8], 77);
}

#[test]
fn a_wild_kernel_breaks_its_context_for_good() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    load(&mut client, &machine);
    client.ok(&[
        "cuModuleGetFunction &fill $module \"sim_fill_u32\"",
        "cuMemAlloc_v2 &z 16",
    ]);
    client.set("value", 1u32);
    client.set("count", 1024u32);
    parameters(&mut client, &["z", "value", "count"]);
    client.ok(&["cuLaunchKernel $fill 1 1 1 1024 1 1 0 0 &parameters 0"]);
    assert_eq!(
        [
            client.call("cuCtxSynchronize"),
            client.call("cuMemAlloc_v2 &y 16")
        ],
        [700, 700]
    );
}

#[test]
fn what_cannot_be_launched_is_refused() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    load(&mut client, &machine);
    assert_eq!(
        client.call("cuModuleGetFunction &none $module \"no_such_kernel\""),
        500
    );
    client.ok(&[
        "cuModuleGetFunction &busy $module \"sim_busy_us_250\"",
        "cuStreamCreate &stream 1",
        "cuStreamDestroy_v2 $stream",
    ]);
    assert_eq!(client.call("cuLaunchKernel 12345 1 1 1 1 1 1 0 0 0 0"), 400);
    assert_eq!(client.call("cuLaunchKernel $busy 0 1 1 1 1 1 0 0 0 0"), 1);
    assert_eq!(
        client.call("cuLaunchKernel $busy 1 1 1 2048 1 1 0 0 0 0"),
        1
    );
    assert_eq!(
        client.call("cuLaunchKernel $busy 1 1 1 1 1 1 0 $stream 0 0"),
        400
    );
    client.ok(&["cuModuleUnload $module"]);
    assert_eq!(client.call("cuLaunchKernel $busy 1 1 1 1 1 1 0 0 0 0"), 400);
    assert_eq!(client.call("cuModuleLoadData &module \"hello"), 218);
    assert_eq!(client.call("cuModuleLoad &module \"/nowhere"), 301);
}

#[test]
fn variables_of_a_module_are_device_memory() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    load(&mut client, &machine);
    client.ok(&[
        "cuModuleGetGlobal_v2 &address &size $module \"table\"",
        "cuMemsetD8_v2 $address 9 400",
    ]);
    assert_eq!(client.value("size"), 400);
    client.ok(&["cuModuleUnload $module"]);
    assert_eq!(client.call("cuMemsetD8_v2 $address 9 400"), 1);
}

#[test]
fn nothing_works_without_a_context() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    for order in [
        "cuMemAlloc_v2 &a 1",
        "cuDeviceGetCount &n",
        "cuCtxSynchronize",
        "cuMemGetInfo_v2 &a &b",
        "cuDevicePrimaryCtxRetain &c 0",
    ] {
        assert_eq!(client.call(order), 3, "{order} before cuInit");
    }
    client.ok(&["cuInit 0"]);
    for order in [
        "cuMemAlloc_v2 &a 1",
        "cuCtxSynchronize",
        "cuMemGetInfo_v2 &a &b",
        "cuStreamCreate &s 0",
        "cuCtxGetDevice &d",
    ] {
        assert_eq!(client.call(order), 201, "{order} without a context");
    }
    assert_eq!(client.call("cuDeviceGet &d 1"), 101);
}

#[test]
fn what_is_linked_can_be_loaded() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    let path = machine.path("kernels.ptx");
    std::fs::write(&path, PTX).expect("written");
    client.ok(&[
        "cuLinkCreate_v2 0 0 0 &link",
        &format!("cuLinkAddFile_v2 $link 1 \"{}\" 0 0 0", path.display()),
        "cuLinkComplete $link &cubin &size",
        "cuModuleLoadData &module $cubin",
        "cuLinkDestroy $link",
        "cuModuleGetFunction &fill $module \"sim_fill_u32\"",
    ]);
    assert_eq!(client.call("cuLinkComplete $link &cubin &size"), 400);
}

#[test]
fn the_oldest_launches_take_shape_and_parameters_from_the_function() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    load(&mut client, &machine);
    client.ok(&[
        "cuModuleGetFunction &fill $module \"sim_fill_u32\"",
        "cuMemAlloc_v2 &z 16",
        "cuMemsetD8_v2 $z 0 16",
        "cuFuncSetBlockShape $fill 3 1 1",
        "cuFuncSetSharedSize $fill 1024",
        "cuParamSetSize $fill 16",
        "cuParamSetv $fill 0 &z 8",
        "cuParamSeti $fill 8 7",
        "cuParamSeti $fill 12 4",
        "cuLaunch $fill",
        "cuMemcpyDtoH_v2 &seen $z 16",
    ]);
    assert_eq!(client.value("seen"), 7 << 32 | 7);
    assert_eq!(
        client.bytes("seen")[8..16],
        [7, 0, 0, 0, 0, 0, 0, 0],
        "three threads"
    );
    client.ok(&[
        "cuLaunchGrid $fill 2 1",
        "cuLaunchGridAsync $fill 2 1 0",
        "cuMemcpyDtoH_v2 &seen $z 16",
    ]);
    assert_eq!(client.bytes("seen")[8..16], [7, 0, 0, 0, 7, 0, 0, 0]);
    for order in [
        "cuFuncSetBlockShape $fill 0 1 1",
        "cuParamSetSize $fill 5000",
        "cuParamSeti $fill -1 0",
        "cuParamSetv $fill 0 0 8",
        "cuParamSetv $fill 4090 &z 8",
        "cuLaunchGrid $fill 0 1",
    ] {
        assert_eq!(client.call(order), 1, "{order}");
    }
    assert_eq!(client.call("cuLaunch 12345"), 400);
}

#[test]
fn a_cooperative_launch_must_fit_the_gpu_at_once() {
    let machine = Machine::new("l4-24gb:2");
    let mut client = machine.with_virtual_clock().client();
    client.start();
    load(&mut client, &machine);
    client.ok(&[
        "cuModuleGetFunction &busy $module \"sim_busy_ms_5\"",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor &blocks $busy 1024 0",
        "cuDeviceGetAttribute &multiprocessors 16 0",
        "cuStreamCreate &s 1",
    ]);
    let most = client.small_value("blocks") * client.small_value("multiprocessors");
    let launch = |blocks| format!("cuLaunchCooperativeKernel $busy {blocks} 1 1 1024 1 1 0 $s 0");
    client.ok(&[&launch(most)]);
    assert_eq!(client.call(&launch(most + 1)), 720);

    // On several GPUs: one launch each, of the same shape, in streams of the program's.
    client.ok(&[
        "cuDevicePrimaryCtxRetain &second 1",
        "cuCtxSetCurrent $second",
        "cuStreamCreate &t 1",
    ]);
    load(&mut client, &machine);
    client.ok(&["cuModuleGetFunction &other $module \"sim_busy_ms_5\""]);
    let pointer = |value: u64| value as usize;
    let one = |client: &mut Client, function: &str, stream: &str, blocks| CUDA_LAUNCH_PARAMS {
        function: std::ptr::without_provenance_mut(pointer(client.value(function))),
        gridDimX: blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        hStream: std::ptr::without_provenance_mut(pointer(client.value(stream))),
        ..CUDA_LAUNCH_PARAMS::default()
    };
    let good = [
        one(&mut client, "busy", "s", 4),
        one(&mut client, "other", "t", 4),
    ];
    client.set("list", good);
    client.ok(&["cuLaunchCooperativeKernelMultiDevice &list 2 0"]);
    client.ok(&["cuStreamSynchronize $s", "cuStreamSynchronize $t"]);
    let bad = [
        [good[0], good[0]],
        [good[0], one(&mut client, "other", "t", 5)],
        [good[0], one(&mut client, "other", "unset", 4)],
    ];
    for list in bad {
        client.set("list", list);
        assert_eq!(
            client.call("cuLaunchCooperativeKernelMultiDevice &list 2 0"),
            1
        );
    }
    assert_eq!(client.call("cuLaunchCooperativeKernelMultiDevice 0 2 0"), 1);
    assert_eq!(
        client.call("cuLaunchCooperativeKernelMultiDevice &list 0 0"),
        1
    );
}
