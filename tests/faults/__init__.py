"""Power cuts, kills and flipped bits, against the real engine on real files.

What callers know is in `journal`, what they do in `workload`, what must hold afterwards in `oracle`
(with `pairing`). Power cuts: `oplog`, `recorder`, `recording`, `images`, `campaign`. Kills:
`killing`. Damage: `damage`, `small`, `reads`, `flipping`. Bugs that must be caught: `planted`.
"""
