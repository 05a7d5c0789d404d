"""Raises its hard resource limits, and those of PID 1.

The limits are the second fence behind the cgroup. Stopped by having no CAP_SYS_RESOURCE.
"""
import resource

names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
holes, refused = [], 0
for name in names:
    number = getattr(resource, name)
    soft, hard = resource.getrlimit(number)
    if hard == resource.RLIM_INFINITY:
        continue
    for value in (hard + 1, resource.RLIM_INFINITY):
        try:
            resource.setrlimit(number, (soft, value))
            holes.append(name)
        except (ValueError, PermissionError):
            refused += 1
        try:
            resource.prlimit(1, number, (soft, value))
            holes.append(f"{name} of PID 1")
        except (ValueError, PermissionError):
            refused += 1
assert holes or refused, "no limit is set: there was nothing to raise"
print(f"ESCAPED: raised {sorted(set(holes))}" if holes else f"CONTAINED: {refused} raises refused")
