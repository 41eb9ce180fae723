"""TensorFlow takes tensors until it is refused, frees them, and computes; its memory grows with them.

Prints one JSON object of the same shape as bindings_fill.py, with what was computed afterwards.
"""

import json
import os

import tensorflow as tf

AT_MOST = int(os.environ.get("FILL_AT_MOST", 1 << 62))
STEP = 64 << 20


def main():
    gpus = tf.config.list_physical_devices("GPU")
    tf.config.experimental.set_memory_growth(gpus[0], True)
    tensors, got, error = [], 0, None
    with tf.device("/GPU:0"):
        while got < AT_MOST:
            try:
                tensors.append(tf.zeros([STEP], dtype=tf.uint8))
                got += STEP
            except tf.errors.ResourceExhaustedError as refusal:
                error = str(refusal).splitlines()[0]
                break
        tensors.clear()
        x = tf.range(1024, dtype=tf.float64)
        right = float(tf.tensordot(x, x, 1)) == float(sum(i * i for i in range(1024)))
    print(
        json.dumps(
            {
                "route": "tensorflow",
                "version": tf.__version__,
                "got_bytes": got,
                "error": error,
                "product_is_right": right,
            }
        )
    )


main()
