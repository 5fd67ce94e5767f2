"""Power cuts, kills, cut connections and flipped bits, against the real engine on real files and servers.

What callers know is in `journal`, what they do in `workload`, what must hold afterwards in `oracle`
(with `pairing`). Power cuts: `oplog`, `recorder`, `recording`, `images`, `campaign`. Kills:
`killing`. Damage: `damage`, `small`, `reads`, `flipping`. Bugs that must be caught: `planted`,
`misbehaving`. Many clients at once: `listappend`, `listsessions`, `history`, judged by `checker` (with
`cycles`), attacked by `listrun`, followed by `following`. Servers: `serving`, `holding`, `proxy`, `cutting`.
"""
