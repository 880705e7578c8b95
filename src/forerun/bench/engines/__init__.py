"""One file per engine that `forerun bench peers` runs; each works in an environment that may not have forerun."""
