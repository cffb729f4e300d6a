"""Time of a dynamic model's later calls at sizes that are no multiples of 16."""
import sys, time, torch, transformers as tf
import torch._dynamo
from gyrator.runtime.gpu_kernels import GpuKernels
old = GpuKernels._unaligned
spent = [0, 0.0]
def timed(self, about, programs, addresses):
    t = time.perf_counter(); r = old(self, about, programs, addresses); spent[0] += 1; spent[1] += time.perf_counter() - t
    print("   second form", about["name"], about["checked"], about["sizes"], tuple(addresses), f"{time.perf_counter() - t:.2f}")
    return r
GpuKernels._unaligned = timed
kinds = sys.argv[1].split(",")
def bert():
    c = tf.BertConfig(); return tf.BertModel(c)
def gpt2():
    return tf.GPT2Model(tf.GPT2Config())
def llama():
    return tf.LlamaModel(tf.LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=16, vocab_size=32000))
torch.manual_seed(0)
MODES = sys.argv[3].split(",")
for name in sys.argv[2].split(","):
    for mode in MODES:
        m = globals()[name]().cuda().to(torch.bfloat16)
        m.train(mode == "training")
        m.config._attn_implementation = "sdpa"
        for backend in kinds:
            torch._dynamo.reset()
            f = torch.compile(m, backend=backend, dynamic=True)
            for (b, n) in ((8, 128), (8, 77), (7, 128), (5, 99), (8, 136), (8, 256)):
                ids = torch.randint(0, 30000, (b, n), device="cuda")
                mask = torch.ones(b, n, dtype=torch.long, device="cuda"); mask[:, -5:] = 0
                times = []
                for k in range(3):
                    torch.cuda.synchronize(); t = time.perf_counter()
                    if mode == "training":
                        out = f(input_ids=ids, attention_mask=mask).last_hidden_state
                        out.sum().backward()
                    else:
                        with torch.no_grad(): f(input_ids=ids, attention_mask=mask)
                    torch.cuda.synchronize(); times.append(time.perf_counter() - t)
                print(name, mode, backend, (b, n), " ".join(f"{x*1e3:.1f}" for x in times), spent, flush=True); spent[:] = [0, 0.0]
