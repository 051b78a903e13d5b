# SPDX-License-Identifier: Apache-2.0
"""Small models, media and a server for the demo, the tests and the benchmarks.

Nothing here is downloaded: models get random weights from a fixed seed, media are
drawn and encoded on the spot. The package is for this repository's own use and is
not part of the distribution.
"""
