"""vLLM or SGLang serves a model of two small layers with random weights: no download, no tokenizer.

The word is the engine. Prints one JSON object: what PyTorch saw at the start, and how many tokens came.
"""

import json
import os
import sys
import tempfile

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float16",
    "vocab_size": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PROMPT = [5, 6, 7, 8]


def with_vllm(model):
    import vllm

    llm = vllm.LLM(
        model=model,
        load_format="dummy",
        skip_tokenizer_init=True,
        gpu_memory_utilization=0.8,
        max_model_len=256,
    )
    wish = vllm.SamplingParams(max_tokens=8, ignore_eos=True, detokenize=False)
    answer = llm.generate([{"prompt_token_ids": PROMPT}], wish)
    return vllm.__version__, len(answer[0].outputs[0].token_ids)


def with_sglang(model):
    import sglang

    engine = sglang.Engine(
        model_path=model,
        load_format="dummy",
        skip_tokenizer_init=True,
        mem_fraction_static=0.6,
    )
    wish = {"max_new_tokens": 8, "ignore_eos": True}
    answer = engine.generate(input_ids=[PROMPT], sampling_params=wish)
    engine.shutdown()
    return sglang.__version__, len(answer[0]["output_ids"])


def main():
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(CONFIG, file)
        serve = {"vllm": with_vllm, "sglang": with_sglang}[sys.argv[1]]
        version, tokens = serve(folder)
    print(
        json.dumps(
            {
                "route": sys.argv[1],
                "version": version,
                "device_total_bytes": total,
                "tokens": tokens,
            }
        )
    )


if __name__ == "__main__":
    main()
