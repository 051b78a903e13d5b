# SPDX-License-Identifier: Apache-2.0
"""Stock vLLM against lazy media decode, in one run on one machine.

`make bench` runs everything; each script also runs alone. See README.md here.
"""
