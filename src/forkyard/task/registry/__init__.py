"""Sets of task directories that come from elsewhere: by name and version, in an archive, in a git repository.

Whatever is wrong with one is said by name before the sentence, as `manifest_digest_mismatch: ...`. What a run without
such a set needs is here; the rest is imported where a set is loaded.
"""

from forkyard.task.registry.kinds import MANIFEST, is_archive, is_path

__all__ = ["MANIFEST", "is_archive", "is_path"]
