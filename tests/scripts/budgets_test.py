#!/usr/bin/env python3
"""scripts/bench/ptxas.py and sass.py without nvcc: a listing and messages as nvcc's tools write them, and what is worse.

Usage: budgets_test.py SOURCE_FOLDER [unittest arguments]
"""
import json
import pathlib
import subprocess
import sys
import unittest

SOURCE = None
LISTING = """
.text._Z1kv:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_0:
        /*0010*/                   LDG.E.128 R4, [R2.64] ;
        /*0020*/                   LDG.E R8, [R2.64+0x10] ;
        /*0030*/              @!P0 IADD3 R2, P1, R2, 0x10, RZ ;
        /*0040*/                   FFMA R9, R4, R5, R9 ;
        /*0050*/               @P0 BRA `(.L_x_0) ;
        /*0060*/                   EXIT ;
.L_x_1:
        /*0070*/                   BRA `(.L_x_1);
.text._Z1nv:
.L_x_4:
        /*0000*/                   LDG.E.64 R4, [R2.64] ;
        /*0010*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0020*/               @P1 BRA `(.L_x_4) ;
.L_x_5:
        /*0030*/                   STG.E.128 [R2.64], R4 ;
        /*0040*/               @P0 BRA `(.L_x_5) ;
        /*0050*/                   EXIT ;
.text._Z1mv:
.L_x_2:
.L_x_3:
        /*0000*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0010*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0020*/                   HMMA.16816.F32 R12, R4, R6, R12 ;
        /*0030*/                   MUFU.EX2 R3, R3 ;
        /*0040*/               @P1 BRA `(.L_x_3) ;
        /*0050*/               @P0 BRA `(.L_x_2) ;
        /*0060*/                   EXIT ;
"""
MESSAGES = """ptxas info    : Compiling entry function '_Z1kv' for 'sm_80'
ptxas info    : Function properties for _Z1kv
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 512 bytes smem, 400 bytes cmem[0]
ptxas info    : Compiling entry function '_Z1mv' for 'sm_80'
ptxas info    : Function properties for _Z1mv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
"""


class Budgets(unittest.TestCase):
    def test_loops_of_a_listing(self):
        found = sass.functions(LISTING)
        loop, = sass.inner_loops(found["_Z1kv"], tensor=False)
        self.assertEqual([code.split()[0] for code in loop], ["LDG.E.128", "LDG.E", "IADD3", "FFMA", "BRA"])
        self.assertEqual([sass.bytes_of(code) for code in loop], [16, 4, 0, 0, 0])
        around, = sass.inner_loops(found["_Z1mv"], tensor=True)
        self.assertEqual(sum("HMMA" in code for code in around), 2)
        multiplies, = sass.inner_loops(found["_Z1nv"], tensor=False)  # not that which moves wider words
        self.assertEqual([code.split()[0] for code in multiplies], ["LDG.E.64", "HMMA.16816.F32", "BRA"])

    def test_bytes_that_lanes_share_count_once(self):
        lines = sass.functions(LISTING)["_Z1nv"]
        name = "decode_fused<LevelTiles<Level<i4>, 128>, 1>"
        row = ptxas.figures_of(name, (80, 96, 0), lines, 80)
        self.assertEqual((row["instructions"], row["bytes"]), (3, 2 * 16 * (128 // 2 + 8)))
        self.assertEqual(ptxas.figures_of("decode_fused<Team<half, 8, 16, 1>, 1>", (80, 96, 0), lines, 80)["bytes"], 32 * 8)
        self.assertLessEqual(set(ptxas.TURN), set(ptxas.HOT))
        memory = sass.share([["LDG.E.64", "BRA"]], 80, False)[2], sass.share([["LDG.E.64", "BRA"]], 80, False, 32)[2]
        self.assertEqual(memory, (1.0, 1.0))  # no unit but memory
        self.assertLess(sass.share([["FFMA"] * 64], 80, False, 32)[1], sass.share([["FFMA"] * 64], 80, False, 64)[1])

    def test_clocks_by_the_limits_of_a_card(self):
        around, = sass.inner_loops(sass.functions(LISTING)["_Z1mv"], tensor=True)
        self.assertEqual(sass.clocks(around, 80)["tensor"], 2 * 2048 / 256)
        self.assertEqual(sass.clocks(around, 80)["shared"], 4 * 512 / 128)
        self.assertEqual(sass.clocks(around, 75)["shared"], 4 * 512 / 64)
        self.assertEqual(sass.clocks(around, 90)["special"], 8)
        bound, best, worst = sass.share([around], 80, tensor=True)
        self.assertEqual((bound, best), ("tensor", 1.0))
        self.assertAlmostEqual(worst, 16 / (16 + 16 + 8))
        self.assertEqual(sass.share([around], 90, tensor=True)[0], "shared")

    def test_thread_blocks_at_once(self):
        self.assertEqual(sass.blocks_at_once(80, 128, 255, 32768), 2)  # registers
        self.assertEqual(sass.blocks_at_once(75, 128, 32, 32768), 2)  # shared memory
        self.assertEqual(sass.blocks_at_once(75, 128, 32, 0), 8)  # warps
        self.assertEqual(sass.blocks_at_once(75, 32, 16, 0), 16)  # thread blocks

    def test_messages_of_nvcc(self):
        self.assertEqual(ptxas.kernels_in(MESSAGES), {"_Z1kv": (40, 512, 12), "_Z1mv": (255, 0, 0)})
        self.assertEqual(ptxas.short_name("void weft::kernels::(anonymous namespace)::decode_fused<weft::kernels::cuda::"
                                          "decode::Team<weft::kernels::cuda::Level<(weft::DType)4>, 8, 16, 1>, 1>(weft::"
                                          "kernels::cuda::decode::Args)"),
                         "decode_fused<Team<Level<i8>, 8, 16, 1>, 1>")

    def test_what_is_worse_is_named(self):
        row = {"registers": 100, "shared": 0, "spills": 0, "blocks": 4, "instructions": 100, "products": 0, "bytes": 1000}
        budget = {"k": {"80": row}}
        self.assertEqual(ptxas.worse(budget, {"k": {"80": row}}), [])
        self.assertEqual(ptxas.worse(budget, {"k": {"80": row | {"registers": 120, "instructions": 102}}}), [])
        for change, words in (({"blocks": 3}, "3 thread blocks at once, budget 4"), ({"spills": 8}, "spills 8 bytes"),
                              ({"instructions": 120}, "0.12 instructions for one of its bytes, budget 0.1"),
                              ({"bytes": 500}, "0.2 instructions for one of its bytes, budget 0.1")):
            line, = ptxas.worse(budget, {"k": {"80": row | change}})
            self.assertEqual(line, f"k on sm_80: {words}")
        self.assertIn("is gone", ptxas.worse(budget, {})[0])
        self.assertIn("spills", ptxas.worse({}, {"other": {"75": row | {"spills": 4}}})[0])

    def test_the_budgets_are_of_the_hot_kernels(self):
        kept = json.loads(ptxas.BUDGETS.read_text())
        self.assertLessEqual(set(kept["kernels"]), set(ptxas.HOT))
        self.assertIn("prefill_tensor<half, 128, 2>", kept["kernels"])
        without = {"75": ["prefill_tensor<half, 128, 2>"]}  # Turing has no two strips of heads of 128
        for architecture in ("75", "80", "90"):
            self.assertEqual([name for name, by in kept["kernels"].items() if architecture not in by],
                             without.get(architecture, []), architecture)
        for name, by in kept["kernels"].items():
            self.assertLessEqual(set(by), {"75", "80", "90"}, name)
            for row in by.values():
                self.assertEqual(row["spills"], 0, name)
                self.assertGreater(row["instructions"], 0, name)

    def test_without_nvcc_it_is_skipped_and_said(self):
        run = subprocess.run([sys.executable, SOURCE / "scripts/bench/ptxas.py", "--check"], capture_output=True, text=True,
                             env={"PATH": "/nowhere"})
        self.assertEqual((run.returncode, run.stdout), (77, "skipped: there is no nvcc on the PATH\n"))


if __name__ == "__main__":
    SOURCE = pathlib.Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(SOURCE / "scripts/bench"))
    import ptxas
    import sass
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
