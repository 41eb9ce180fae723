"""cuda-core builds a graph by capture, with two branches, and launches it.

The argument is a file of PTX with the kernel sim_busy_us_250. Prints one JSON object: how long launches took, in milliseconds.
"""

import json
import sys

from cuda.core import Device, EventOptions, LaunchConfig, ObjectCode, launch


def main():
    device = Device(0)
    device.set_current()
    with open(sys.argv[1], "rb") as ptx:
        kernel = ObjectCode.from_ptx(ptx.read()).get_kernel("sim_busy_us_250")
    config = LaunchConfig(grid=1, block=1)
    builder = device.create_graph_builder().begin_building()
    launch(builder, config, kernel)
    left, right = builder.split(2)
    launch(left, config, kernel)
    launch(right, config, kernel)
    graph = left.join(left, right).end_building().complete()

    stream = device.create_stream()
    begin = stream.record(options=EventOptions(timing_enabled=True))
    launches = 8
    for _ in range(launches):
        graph.launch(stream)
    end = stream.record(options=EventOptions(timing_enabled=True))
    stream.sync()
    print(json.dumps({"launches": launches, "took_ms": end - begin}))


main()
