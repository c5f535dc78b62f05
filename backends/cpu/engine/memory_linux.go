package engine

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// memory returns the bytes of memory that this process could use in all, and
// those that are available now, which counts page cache that can be dropped. The
// limit of the process's control group is respected.
func memory() (total, free int64) {
	total, free = meminfo()
	limit, used, ok := groupMemory()
	if ok && limit < total {
		total = limit
		free = min(free, max(limit-used, 0))
	}
	return total, free
}

// meminfo reads /proc/meminfo, whose unit is KiB.
func meminfo() (total, available int64) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			continue
		}
		n, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "MemTotal":
			total = n << 10
		case "MemAvailable":
			available = n << 10
		}
	}
	return total, available
}

// groupMemory returns the limit and the use of the memory control group, of
// version 2 or 1, where there is a limit. Inside a container the group's files
// are at the root of the hierarchy.
func groupMemory() (limit, used int64, ok bool) {
	for _, files := range [][2]string{
		{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
		{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
	} {
		limit, limited := number(files[0])
		used, counted := number(files[1])
		if limited && counted {
			return limit, used, true
		}
	}
	return 0, 0, false
}

// number reads a file that holds one number; "max" is none.
func number(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// processorName is what the kernel calls the first processor.
func processorName() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
