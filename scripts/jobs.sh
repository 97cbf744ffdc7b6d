#!/bin/sh
# Prints how many compilers to run at once: one per core, but no more than fit into free memory (a file with torch takes 1 GB).
cores=$(nproc)
memory=$(awk '/^MemAvailable:/ { print int($2 / 1500000) }' /proc/meminfo)
jobs=$((cores < ${memory:-1} ? cores : ${memory:-1}))
echo $((jobs < 1 ? 1 : jobs))
