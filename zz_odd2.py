import torch, triton, sys, torch.nn.functional as F
bf = torch.bfloat16
R, N = 8192, 50257
def cases():
    g = lambda *s, d=bf: torch.randn(*s, device="cuda", dtype=torch.float32).to(d)
    yield "flat odd bf16", lambda x: x * 2 + 1, [g(R * N - 1)], ()
    yield "flat even bf16", lambda x: x * 2 + 1, [g(R * N)], ()
    yield "flat odd f32", lambda x: x * 2 + 1, [g(R * N // 2 - 1, d=torch.float32)], ()
    yield "gelu 8191x50257 two inputs", lambda x, y: F.gelu(x) * y, [g(8191, N), g(8191, N)], ()
    yield "softmax 50257", lambda x: x.softmax(-1), [g(R, N)], ()
    yield "logsumexp 50257", lambda x: x.float().logsumexp(-1), [g(R, N)], ()
    yield "log_softmax 50265", lambda x: x.float().log_softmax(-1), [g(4096, 50265)], ()
    yield "argmax 50257", lambda x: x.argmax(-1), [g(R, N)], ()
    yield "norm 40003", lambda x: F.layer_norm(x, (40003,)), [g(8192, 40003)], ()
    yield "layer norm 1001", lambda x: F.layer_norm(x, (1001,)), [g(300000, 1001)], ()
    yield "softmax 77 dynamic", lambda x, y: (x + y).softmax(-1), [g(512, 16, 77, 77), g(1, 16, 77, 77)], (2, 3)
    yield "add 77 dynamic", lambda x, y: x * y, [g(2047, 16, 77, 77), g(2047, 16, 77, 77)], (0, 2, 3)
    yield "add 80 dynamic", lambda x, y: x * y, [g(2047, 16, 80, 80), g(2047, 16, 80, 80)], (0, 2, 3)
    yield "softmax 77 to 80 dynamic", lambda x: x.softmax(-1), [g(512, 16, 80, 80)], (2, 3)
    yield "softmax 2047 dynamic", lambda x: x.softmax(-1), [g(16, 4096, 2047)], (1, 2)
    yield "sum rows 1001", lambda x: x.sum(-1), [g(400000, 1001)], ()
    yield "sum columns 8191", lambda x: x.sum(0), [g(N, 8191)], ()
    yield "transpose add odd", lambda x, y: x.t() + y, [g(12001, 12003), g(12003, 12001)], ()
    yield "cat odd", lambda x, y: torch.cat([x, y], 1), [g(40001, 1001), g(40001, 2003)], ()
    yield "dropout-like mask odd", lambda x, m: x * m, [g(R * N - 1), torch.rand(R * N - 1, device="cuda") > .5], ()
only = sys.argv[2:] 
for name, f, args, dyn in cases():
    if only and not any(o in name for o in only): continue
    row = []
    for backend in sys.argv[1].split(","):
        torch._dynamo.reset()
        if dyn:
            for x in args:
                for d in dyn: 
                    if x.shape[d] > 1: torch._dynamo.mark_dynamic(x, d)
        c = f if backend == "eager" else torch.compile(f, backend=backend)
        try:
            with torch.no_grad():
                r = c(*args)
                err = "" if backend == "eager" else f"{(r.float() - ref).abs().max().item():.1e}"
                if backend == "eager": ref = r.float()
                del r
                ms = triton.testing.do_bench(lambda: c(*args), warmup=15, rep=50, return_mode="median")
            row.append(f"{backend} {ms*1e3:.0f} {err}")
        except Exception as e: row.append(f"{backend} {type(e).__name__} {str(e)[:200]}")
    print(f"{name:30s}", "   ".join(row), flush=True)
    ref = None; torch.cuda.empty_cache()
